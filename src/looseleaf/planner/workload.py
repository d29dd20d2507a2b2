"""Requests for a replay: when each comes, and what it asks for."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import cast

from looseleaf.core.request import Request, RequestId
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.planner.agenda import Event, Player, Then
from looseleaf.planner.sessions import Session, num_sessions, retimed, sessions
from looseleaf.planner.trace_types import TraceRequest
from looseleaf.sampling.params import SamplingParams
from looseleaf.text.tokenizer import Tokenizer

__all__ = [
    "Event",
    "Player",
    "Then",
    "arrival",
    "arrivals",
    "closed_loop",
    "poisson",
    "prompt_tokens",
    "starts",
]


def arrival(time: float, make: Callable[[], Request]) -> Event:
    return Event(time, lambda player: player.add(make()))


def poisson(requests: Iterable[TraceRequest], rate: float, seed: int = 0) -> Iterator[TraceRequest]:
    """The same requests at random times: `rate` of them a second on average. Sessions begin at
    random; their later turns, which count too, wait for answers as they did."""
    found = tuple(requests)
    rng = random.Random(seed)
    starting = rate * num_sessions(found) / max(1, len(found))
    times = itertools.accumulate(
        (rng.expovariate(starting) for _ in itertools.count()), initial=0.0
    )
    return iter(retimed(found, times))


def closed_loop(requests: Iterable[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The same requests without times of their own."""
    return retimed(requests, itertools.repeat(0.0))


Begin = Callable[[Player, Session, Event], None]
"""Told by a closed loop which session begins next, and when: one has just ended at the player."""


def arrivals(
    requests: Iterable[TraceRequest], *, hashed_tokens: int, users: int | None = None
) -> Iterator[Event]:
    """Of requests in the order of their times, which all must have. Answers end after exactly the
    tokens of the trace. `users` are those of a `Trace`."""
    found = starts(requests, hashed_tokens=hashed_tokens, users=users)
    return (event for _, event in found)


def starts(
    requests: Iterable[TraceRequest],
    *,
    hashed_tokens: int,
    users: int | None = None,
    begin: Begin = lambda player, _, event: player.schedule(event),
) -> Iterator[tuple[Session, Event]]:
    """As `arrivals`, with the sessions that begin. Those of a closed loop that wait for others to
    end are given to `begin`, which has to see to it that their events come about."""
    found = sessions(requests)
    if users is None:
        for session in found:
            time = session[0][1].arrival
            assert time is not None
            yield session, Event(time, _Script(session, time, hashed_tokens))
        return
    waiting = iter(found)

    def begin_next(player: Player, time: float) -> None:
        session = next(waiting, None)
        if session is not None:
            start = time + session[0][1].delay
            script = _Script(session, start, hashed_tokens, begin_next)
            begin(player, session, Event(start, script))

    for session in list(itertools.islice(waiting, users)):
        yield session, Event(0.0, _Script(session, 0.0, hashed_tokens, begin_next))


class _Script:
    """One session: asks for its next turn whenever it is called, which is at `time`."""

    __slots__ = ("_hashed_tokens", "_history", "_next", "_on_end", "_time", "_turns")

    def __init__(
        self, turns: Session, time: float, hashed_tokens: int, on_end: Then | None = None
    ) -> None:
        self._turns = turns
        self._time = time
        self._hashed_tokens = hashed_tokens
        self._on_end = on_end
        self._next = 0
        self._history: Sequence[int] = ()

    def __call__(self, player: Player) -> None:
        index, asked = self._turns[self._next]
        self._next += 1
        prompt: Sequence[int]
        if asked.num_history:
            num_new = asked.num_prompt_tokens - asked.num_history
            prompt = [*self._history, *[2 * index + 1] * num_new]
        else:
            prompt = prompt_tokens(asked, index, self._hashed_tokens)
        if asked.beam_width:
            self._search(player, index, asked, prompt)
            return
        request = _request(asked, index, prompt, self._time)
        if self._on_end is None and self._next == len(self._turns):
            player.add(request, leaves_after=asked.leaves_after)
            return

        def then(player: Player, time: float) -> None:
            self._go_on(player, time, request.token_ids)

        player.add(request, then=then, leaves_after=asked.leaves_after)

    def _search(
        self, player: Player, index: int, asked: TraceRequest, prompt: Sequence[int]
    ) -> None:
        search = BeamSearch(
            player.engine,
            str(index),
            prompt,
            BeamSearchParams(
                beam_width=asked.beam_width, max_tokens=asked.num_output_tokens, ignore_eos=True
            ),
            frozenset(),
            cast(Tokenizer, None),  # without stop strings it is not asked
            asked.priority,
        )

        def then(player: Player, time: float) -> None:
            best = search.answers[0].token_ids if search.answers else ()
            self._go_on(player, time, [*prompt, *best])

        player.search(search, arrival=self._time, then=then)

    def _go_on(self, player: Player, time: float, token_ids: Sequence[int]) -> None:
        if self._next == len(self._turns):
            if self._on_end is not None:
                self._on_end(player, time)
            return
        asked = self._turns[self._next][1]
        self._history = token_ids
        self._time = max(time + asked.delay, asked.arrival or 0.0)
        player.schedule(Event(self._time, self))


def _request(asked: TraceRequest, index: int, prompt: Sequence[int], time: float) -> Request:
    params = _params(asked.num_output_tokens)

    def sample(number: int, children: tuple[Request, ...] = ()) -> Request:
        return Request(
            RequestId(f"{index}/{number}"),
            prompt,
            params,
            arrival_time=time,
            priority=asked.priority,
            sample_index=number,
            children=children,
        )

    return sample(0, tuple(sample(i) for i in range(1, asked.num_samples)))


@lru_cache(maxsize=4096)
def _params(num_output_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_output_tokens, ignore_eos=True, seed=0)


def prompt_tokens(request: TraceRequest, index: int, hashed_tokens: int) -> Sequence[int]:
    """Tokens that are equal to another prompt's exactly where the trace says so. Where it has no
    hashes (any more), they are those of the request `index` alone.

    Hashes are even tokens and requests odd ones, so that the two never look alike; all are
    positive, which a `PlannedExecutor`'s are not.
    """
    tokens: list[int] = []
    for hash_id in request.hash_ids:
        tokens += [2 * hash_id] * hashed_tokens
    num_missing = request.num_prompt_tokens - len(tokens)
    if num_missing < 0:
        del tokens[num_missing:]
    elif num_missing > 0:
        tokens += [2 * index + 1] * num_missing
    return tokens
