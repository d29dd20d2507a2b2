"""Who comes when, with what prompt and for how long an answer: made up, or as it was recorded.

All of it is known before anything runs, so that several engines can be given the same.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from looseleaf.core.errors import LooseleafError
from looseleaf.studio.frames import Delta, Snapshot
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import frames_of
from looseleaf.studio.showcase import STEP_SECONDS, TOKEN_SECONDS

MAX_ARRIVALS = 3000

VOCAB_SIZE = 1 << 60

DEFAULT_STEP_SECONDS = (STEP_SECONDS, TOKEN_SECONDS)
"""Of chats that are made up, and where too few steps are recorded to say it."""

_STEPS_OF_NOTE = 4


class Chunk(NamedTuple):
    """`length` tokens that are equal wherever their `seed` is: what makes prompts share."""

    seed: int
    length: int


class Arrival(NamedTuple):
    """`text` is the prompt and, as far as it is known, what the first of the answers will say."""

    time: float
    text: tuple[Chunk, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    num_samples: int = 1

    def tokens(self) -> list[int]:
        return [token for seed, length in self.text for token in _tokens(seed, length)]


class Arrivals(NamedTuple):
    """For a pool of blocks of `block_size`. `longest` is what a request may become, in tokens; a
    step takes the first of `step_seconds`, and the second for each token."""

    requests: tuple[Arrival, ...]
    num_blocks: int
    block_size: int
    longest: int
    step_seconds: tuple[float, float]


def _tokens(seed: int, length: int) -> Iterator[int]:
    return iter(range(seed, seed + length))


class Chats(NamedTuple):
    """`rate` of them come in a second. Each begins with one of a few system prompts, and goes on
    for some turns; the next question comes a while after the answer was expected."""

    rate: float = 1.5
    num_blocks: int = 512
    longest: int = 1024
    block_size: int = 16
    num_systems: int = 4
    system_tokens: int = 128
    question_tokens: int = 60
    answer_tokens: int = 260
    goes_on: float = 0.6
    samples_share: float = 0.12
    """Of those that ask for four answers."""
    token_seconds: float = 0.05
    """How long an answer is expected to take, and how long it is read."""


def made_up(chats: Chats, seconds: float, seed: int) -> Arrivals:
    """Follows from `seed` alone."""
    rng = random.Random(seed)
    fresh = _Seeds()
    systems = [
        Chunk(fresh.take(chats.system_tokens), rng.randint(32, chats.system_tokens))
        for _ in range(chats.num_systems)
    ]
    found: list[Arrival] = []
    now = 0.0
    while (now := now + rng.expovariate(chats.rate)) < seconds and len(found) < MAX_ARRIVALS:
        found.extend(_turns(chats, now, rng, rng.choice(systems), fresh))
    found = sorted(a for a in found if a.time < seconds)
    return Arrivals(
        tuple(found[:MAX_ARRIVALS]),
        chats.num_blocks,
        chats.block_size,
        min(chats.longest, chats.num_blocks * chats.block_size),
        DEFAULT_STEP_SECONDS,
    )


def _turns(
    chats: Chats, start: float, rng: random.Random, system: Chunk, fresh: "_Seeds"
) -> Iterator[Arrival]:
    text: tuple[Chunk, ...] = (system,)
    length, now = system.length, start
    while True:
        asked, answered = rng.randint(4, chats.question_tokens), rng.randint(8, chats.answer_tokens)
        if length + asked + answered > chats.longest:
            return
        length += asked
        samples = 4 if rng.random() < chats.samples_share else 1
        question = Chunk(fresh.take(asked), asked)
        answer = Chunk(fresh.take(answered), answered)
        text = (*text, question, answer)
        yield Arrival(now, text, length, answered, samples)
        length += answered
        if rng.random() > chats.goes_on:
            return
        now += answered * chats.token_seconds * rng.uniform(1, 2)


class _Seeds:
    """Runs of tokens that nobody else has."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def take(self, length: int) -> int:
        self._next += length
        return self._next - length


def recorded(path: Path) -> Arrivals:
    """The requests that came during a recording of the studio's feed, the first of very many.

    What they share follows from the hashes of their blocks. Of a request that was not seen to end,
    the answer is as long as it was at the end; of one that came and ended between two frames, only
    the lengths are known. A beam search counts as one answer of its length.
    Raises LooseleafError for what is no recording, and where nobody came.
    """
    reader = _Reader()
    picture: Picture | None = None
    for frame in frames_of(path):
        if isinstance(frame, Snapshot):
            picture = Picture(frame)
            reader.begin(picture)
        elif picture is not None:
            picture.apply(frame)
            reader.take(frame, picture)
            if reader.num_seen >= MAX_ARRIVALS:
                break
    assert picture is not None
    requests = reader.arrivals()
    if not requests:
        raise LooseleafError(f"{path} has no request that came while it was recorded")
    return Arrivals(
        tuple(requests),
        picture.num_blocks,
        picture.block_size,
        min(max(reader.longest, picture.block_size), picture.num_blocks * picture.block_size),
        reader.step_seconds(),
    )


class _Seen:
    """A request of a recording, as far as it has been read."""

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.name = ""
        self.prompt = self.tokens = 0
        self.hashes: list[str] = []


class _Reader:
    def __init__(self) -> None:
        self.longest = 0
        self._seen: dict[int, _Seen] = {}
        self._before: list[_Seen] = []
        """Those of before the last snapshot, after which numbers are others."""
        self._old: set[int] = set()
        """Those that were there at the last snapshot, and came before it."""
        self._size = 1
        self._start = 0.0
        self._steps: list[tuple[int, float]] = []

    @property
    def num_seen(self) -> int:
        return len(self._before) + len(self._seen)

    def begin(self, picture: Picture) -> None:
        self._size, self._start = picture.block_size, picture.time
        self._before += self._seen.values()
        self._seen, self._old = {}, set(picture.requests)

    def take(self, delta: Delta, picture: Picture) -> None:
        for news in delta.requests:
            if news.number in self._old:
                continue
            known = self._seen.setdefault(news.number, _Seen(self._start))
            for name, value in news.told():
                match name:
                    case "id":
                        known.name = value
                    case "arrival_time":
                        known.arrival = value
                    case "num_prompt_tokens":
                        known.prompt = value
                    case "num_tokens":
                        known.tokens = value
                    case "max_total_tokens":
                        self.longest = max(self.longest, value)
        for number, table in picture.tables.items():
            seen = self._seen.get(number)
            if seen is not None:
                self._read(seen.hashes, table, picture)
        for run in delta.steps:
            if run.num_steps == 1:
                tokens = sum(part.num_tokens for part in run.parts)
                self._steps.append((tokens, run.end - run.start))

    def _read(self, hashes: list[str], table: list[int], picture: Picture) -> None:
        """What the full blocks of a table are found under, as far as that is known."""
        while len(hashes) < len(table):
            block = picture.blocks.get(table[len(hashes)])
            if block is None or block.hash is None or block.num_tokens < self._size:
                return
            hashes.append(block.hash)

    def arrivals(self) -> list[Arrival]:
        groups: dict[str, list[_Seen]] = {}
        for seen in (*self._before, *self._seen.values()):
            groups.setdefault(seen.name.rpartition("/")[0] or seen.name, []).append(seen)
        first = min((group[0].arrival for group in groups.values()), default=0.0)
        fresh, known = _Seeds(), dict[str, int]()
        found = []
        for group in groups.values():
            beams = "/beam-" in group[0].name
            one = max(group, key=lambda seen: (len(seen.hashes), seen.tokens))
            # Samples that ended at once are told without what they had.
            prompt = max(seen.prompt for seen in group)
            if prompt == 0:
                continue
            output = max(1, max(seen.tokens for seen in group) - prompt)
            text: list[Chunk] = []
            for name in one.hashes:
                if name not in known:
                    known[name] = fresh.take(self._size)
                text.append(Chunk(known[name], self._size))
            rest = prompt + output - len(text) * self._size
            if rest > 0:
                text.append(Chunk(fresh.take(rest), rest))
            samples = 1 if beams else len(group)
            arrival = max(0.0, group[0].arrival - first)
            found.append(Arrival(arrival, tuple(text), prompt, output, samples))
            self.longest = max(self.longest, prompt + output)
        return sorted(found)

    def step_seconds(self) -> tuple[float, float]:
        """The line through the lengths of the steps, by their tokens (least squares)."""
        steps = self._steps
        if len(steps) < _STEPS_OF_NOTE:
            return DEFAULT_STEP_SECONDS
        count = len(steps)
        mean_tokens = sum(tokens for tokens, _ in steps) / count
        mean_seconds = sum(seconds for _, seconds in steps) / count
        spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in steps)
        together = sum((t - mean_tokens) * (s - mean_seconds) for t, s in steps)
        slope = max(0.0, together / spread) if spread else 0.0
        return (max(1e-4, mean_seconds - slope * mean_tokens), slope)
