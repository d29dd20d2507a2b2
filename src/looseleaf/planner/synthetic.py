"""Traffic that nobody has sent: drawn at random from what a workload file asks for.

Lengths, sessions and times have random numbers of their own: another rate has the same requests,
and another class does not move the arrivals.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from looseleaf.core.errors import ConfigError
from looseleaf.planner.distribution import Distribution, mean_whole, whole
from looseleaf.planner.sessions import retimed
from looseleaf.planner.trace_types import Trace, TraceRequest

HASHED_TOKENS = 16

MAX_PROMPT_TOKENS = 2**29
"""Of all requests together: they are in memory, by their hashes."""

PROCESSES = ("poisson", "gamma", "constant", "closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`rate` requests a second, those of sessions counted one by one; the gaps between sessions are
    random (poisson), random with a coefficient of variation `cv` (gamma), or all the same
    (constant). In a closed loop there is no rate: `users` wait for answers, and then for `think`
    seconds, before they begin again."""

    process: str
    rate: float = 0.0
    cv: float = 1.0
    users: int | None = None
    think: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A `share` of the sessions begin with one of `groups` texts of `length` tokens. All are as
    likely, or with an exponent `zipf` the k-th is by 1 / k ** zipf."""

    length: int
    groups: int = 1
    share: float = 1.0
    zipf: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """Sessions of one kind. `prompt` tokens are new in each turn; before them come the shared
    prefix and, from the second turn on, all that was said. With an `output_share` instead of an
    `output`, `prompt` counts both, and so much of it is the answer. `think` seconds lie between an
    answer and the next turn. A share of the requests (`abort_share`) is given up after
    `abort_after` tokens."""

    name: str
    prompt: Distribution
    output: Distribution | None = None
    output_share: float | None = None
    weight: float = 1.0
    turns: Distribution | None = None
    think: Distribution | None = None
    shared_prefix: SharedPrefix | None = None
    num_samples: int = 1
    beam_width: int = 0
    priority: int = 0
    abort_share: float = 0.0
    abort_after: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """So many requests, or all of the sessions that begin within `duration` seconds."""

    arrivals: Arrivals
    classes: tuple[TrafficClass, ...]
    num_requests: int | None = None
    duration: float | None = None
    seed: int = 0


def synthesize(workload: Workload) -> Trace:
    """The same requests for the same seed, everywhere. Raises ConfigError if they are too much."""
    seed = workload.seed
    sessions = _Sessions(workload.classes, random.Random(f"{seed} requests"))
    starts = _starts(workload, random.Random(f"{seed} times"))
    most = inf if workload.num_requests is None else workload.num_requests
    until = inf if workload.duration is None else workload.duration
    pauses = random.Random(f"{seed} pauses")
    think = workload.arrivals.think
    requests: list[TraceRequest] = []
    begun: list[float] = []
    num_tokens = 0
    while len(requests) < most:
        start = next(starts)
        if start > until:
            break
        pause = 0.0 if think is None else think.at(pauses.random())
        begun.append(start)
        drawn = sessions.draw(pause)
        requests += drawn
        num_tokens += sum(request.num_prompt_tokens for request in drawn)
        if num_tokens > MAX_PROMPT_TOKENS:
            raise ConfigError(
                f"the workload's first {len(requests)} requests have {num_tokens} tokens of "
                f"prompts, but all may have at most {MAX_PROMPT_TOKENS}: ask for fewer requests"
            )
    del requests[len(requests) if workload.num_requests is None else workload.num_requests :]
    timed = retimed(requests, iter(begun))
    return Trace(timed, (), True, HASHED_TOKENS, workload.arrivals.users)


def _starts(workload: Workload, rng: random.Random) -> Iterator[float]:
    """When sessions begin: the first one at once."""
    asked = workload.arrivals
    if asked.users is not None:
        return itertools.repeat(0.0)
    total = sum(one.weight for one in workload.classes)
    turns = sum(one.weight * _mean_turns(one) for one in workload.classes) / total
    mean_gap = turns / asked.rate

    def gap() -> float:
        if asked.process == "constant":
            return mean_gap
        if asked.process == "poisson":
            return rng.expovariate(1 / mean_gap)
        shape = 1 / asked.cv**2
        return rng.gammavariate(shape, mean_gap / shape)

    return itertools.accumulate((gap() for _ in itertools.count()), initial=0.0)


def _mean_turns(asked: TrafficClass) -> float:
    return 1.0 if asked.turns is None else mean_whole(asked.turns)


class _Sessions:
    """Draws one after the other, each with blocks of prompts that nobody else has but for what is
    shared."""

    def __init__(self, classes: Sequence[TrafficClass], rng: random.Random) -> None:
        self._rng = rng
        self._classes = classes
        self._weights = list(itertools.accumulate(one.weight for one in classes))
        self._hashes = itertools.count()
        self._numbers = itertools.count()
        self._prefixes = [self._texts(one.shared_prefix) for one in classes]
        self._groups = [_group_weights(one.shared_prefix) for one in classes]

    def _texts(self, asked: SharedPrefix | None) -> list[tuple[int, ...]]:
        if asked is None:
            return []
        size = asked.length // HASHED_TOKENS
        return [tuple(itertools.islice(self._hashes, size)) for _ in range(asked.groups)]

    def draw(self, delay: float) -> list[TraceRequest]:
        """One session, whose first request has this delay."""
        rng = self._rng
        (place,) = rng.choices(range(len(self._classes)), cum_weights=self._weights)
        asked = self._classes[place]
        text: list[int] = []
        if asked.shared_prefix is not None and rng.random() < asked.shared_prefix.share:
            text += rng.choices(self._prefixes[place], cum_weights=self._groups[place])[0]
        history = len(text) * HASHED_TOKENS
        turns = 1 if asked.turns is None else whole(asked.turns, rng.random())
        session = None if turns == 1 else next(self._numbers)
        requests: list[TraceRequest] = []
        for turn in range(turns):
            prompt, output = self._lengths(asked)
            if turn:
                delay = 0.0 if asked.think is None else asked.think.at(rng.random())
            length = history + prompt
            missing = length // HASHED_TOKENS - len(text)
            text += itertools.islice(self._hashes, missing)
            request = TraceRequest(
                None,
                length,
                output,
                tuple(text),
                asked.num_samples,
                session,
                delay,
                history if turn else 0,
                asked.beam_width,
                asked.priority,
                self._leaves(asked, output),
            )
            requests.append(request)
            history = length + request.num_answered
        return requests

    def _lengths(self, asked: TrafficClass) -> tuple[int, int]:
        if asked.output is not None:
            return whole(asked.prompt, self._rng.random()), whole(asked.output, self._rng.random())
        assert asked.output_share is not None
        both = whole(asked.prompt, self._rng.random(), 2)
        output = min(both - 1, max(1, round(both * asked.output_share)))
        return both - output, output

    def _leaves(self, asked: TrafficClass, output: int) -> int | None:
        if asked.abort_after is None or self._rng.random() >= asked.abort_share:
            return None
        after = whole(asked.abort_after, self._rng.random())
        return after if after < output else None


def _group_weights(asked: SharedPrefix | None) -> list[float]:
    if asked is None:
        return []
    return list(itertools.accumulate(1 / k**asked.zipf for k in range(1, asked.groups + 1)))
