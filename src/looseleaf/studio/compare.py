"""Two engines that differ in their allocator alone, on the same arrivals and one virtual clock.

The bookkeeping is the real one, and the scripted executor checks every read; a step takes the time
that a model would. `python -m looseleaf.studio.compare SETUP` writes the lines of a comparison,
with the setup in JSON: it is run as a process of its own by whoever must not be held up by it.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.errors import CapacityError, LooseleafError
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.engine.engine import Engine
from looseleaf.engine.settings import KV_ALLOCATORS
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.arrivals import (
    MAX_ARRIVALS,
    VOCAB_SIZE,
    Arrival,
    Arrivals,
    Chats,
    made_up,
    recorded,
)
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import encode

INTERVAL = 0.2
"""Virtual seconds between two deltas, after which both have come equally far."""

MAX_WORK_SECONDS = 60.0
"""Of a processor's time: then a comparison ends, however far it has come."""

NICENESS = 15
"""About a thirtieth of what others have of a processor that all want."""

MAX_SECONDS = 600.0
MAX_BLOCKS = 8192


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`against` and `allocator` are compared for so many `seconds`. Without a `recording` chats are
    made up: `rate` come in a second, into a pool of `num_blocks`."""

    against: str = "paged"
    allocator: str = "contiguous-max"
    seconds: float = 60.0
    rate: float = Chats().rate
    num_blocks: int = Chats().num_blocks
    max_num_seqs: int = 64
    seed: int = 0
    recording: str | None = None

    def check(self) -> None:
        """Raises LooseleafError for values that are out of range."""
        known = ", ".join(KV_ALLOCATORS)
        least = Chats().longest // Chats().block_size
        for name, holds, rule in (
            ("against", self.against in KV_ALLOCATORS, f"one of {known}"),
            ("allocator", self.allocator in KV_ALLOCATORS, f"one of {known}"),
            ("seconds", 1 <= self.seconds <= MAX_SECONDS, f"between 1 and {MAX_SECONDS:.0f}"),
            ("rate", 0 < self.rate <= 50, "above 0, at most 50 chats a second"),
            ("num_blocks", least <= self.num_blocks <= MAX_BLOCKS, f"{least} to {MAX_BLOCKS}"),
            ("max_num_seqs", 1 <= self.max_num_seqs <= 512, "between 1 and 512"),
            ("seed", 0 <= self.seed < 2**31, "between 0 and 2147483647"),
        ):
            if not holds:
                raise LooseleafError(f"{name} is out of range: it must be {rule}")

    def arrivals(self) -> Arrivals:
        """Raises LooseleafError as `recorded` does."""
        if self.recording is not None:
            return recorded(Path(self.recording))
        chats = Chats(rate=self.rate, num_blocks=self.num_blocks)
        return made_up(chats, self.seconds, self.seed)


class Side:
    """One of the two engines, on a clock that its own steps move on."""

    def __init__(self, allocator: str, arrivals: Arrivals, max_num_seqs: int) -> None:
        self.now = 0.0
        self.num_refused = 0
        self._coming = deque(enumerate(arrivals.requests))
        executor = _Timed(self, arrivals)
        config = SchedulerConfig(
            arrivals.longest,
            max_num_seqs,
            max(512, 2 * max_num_seqs),
            admission_headroom=64,
        )
        scheduler = Scheduler(config, _tables(allocator, arrivals))
        self.engine = Engine(scheduler, executor, lambda: self.now)
        self.executor = executor
        self.feed = Feed(self.engine, model=allocator)
        self.feed.attach()

    @property
    def done(self) -> bool:
        return not self._coming and not self.engine.has_work

    def advance(self, until: float) -> None:
        """Steps, and who comes in between, until the clock says at least that."""
        while self.now < until:
            while self._coming and self._coming[0][1].time <= self.now:
                self._add(*self._coming.popleft())
            if self.engine.has_work:
                self.engine.step()
            else:
                following = self._coming[0][1].time if self._coming else until
                self.now = min(until, following)

    def _add(self, index: int, arrival: Arrival) -> None:
        text = arrival.tokens()
        params = SamplingParams(
            n=arrival.num_samples, max_tokens=arrival.num_output_tokens, ignore_eos=True, seed=0
        )
        samples = [
            Request(
                RequestId(f"{index}/{number}"),
                text[: arrival.num_prompt_tokens],
                params,
                arrival_time=arrival.time,
                sample_index=number,
            )
            for number in range(arrival.num_samples)
        ]
        samples[0].children = tuple(samples[1:])
        try:
            self.engine.add(samples[0])
        except CapacityError:
            self.num_refused += 1
        else:
            self.executor.texts[samples[0].request_id] = text


class _Timed(ScriptedExecutor):
    """Moves a side's clock on. First samples say what is known of their answer."""

    def __init__(self, side: Side, arrivals: Arrivals) -> None:
        super().__init__(
            arrivals.num_blocks, arrivals.block_size, self._next, vocab_size=VOCAB_SIZE
        )
        self.texts: dict[RequestId, list[int]] = {}
        self._side = side
        self._seconds = arrivals.step_seconds

    def _next(self, request_id: RequestId, position: int) -> int:
        text = self.texts.get(request_id, ())
        if position < len(text):
            return text[position]
        return hash((request_id, position)) % (VOCAB_SIZE >> 1) + (VOCAB_SIZE >> 1)

    def execute(self, step: Step) -> StepResult:
        for request_id in step.finished:
            self.texts.pop(request_id, None)
        result = super().execute(step)
        seconds = self._seconds[0] + self._seconds[1] * step.num_tokens
        self._side.now += seconds
        return result._replace(durations=(("forward", seconds),))


def _tables(allocator: str, arrivals: Arrivals) -> KVAllocator:
    cache = CacheConfig(arrivals.num_blocks, arrivals.block_size)
    if allocator == "paged":
        return BlockTables(cache, BlockHasher(arrivals.block_size, b"compare"))
    return ContiguousTables(cache, allocator.removeprefix("contiguous-"), arrivals.longest)


def compare(setup: Setup) -> Iterator[bytes]:
    """Lines of JSON: what is compared; frames of the feed, whose `side` is a or b, first both
    snapshots; how it ended. Raises LooseleafError as `Setup` does."""
    setup.check()
    began = time.process_time()
    arrivals = setup.arrivals()
    names = {"a": setup.against, "b": setup.allocator}
    sides = {name: Side(rule, arrivals, setup.max_num_seqs) for name, rule in names.items()}
    yield _line(
        kind="setup",
        **names,
        seconds=setup.seconds,
        requests=len(arrivals.requests),
        cut=len(arrivals.requests) == MAX_ARRIVALS,
        num_blocks=arrivals.num_blocks,
        block_size=arrivals.block_size,
        longest=arrivals.longest,
    )
    for name, side in sides.items():
        yield _tagged(name, encode(side.feed.collect(snapshot=True).snapshot))
    now, worked = 0.0, 0.0
    while now < setup.seconds and worked < MAX_WORK_SECONDS:
        if all(side.done for side in sides.values()):
            break
        now = min(setup.seconds, now + INTERVAL)
        for name, side in sides.items():
            side.advance(now)
            delta = side.feed.collect().delta
            if delta is not None:
                yield _tagged(name, encode(delta))
        worked = time.process_time() - began
    refused = {name: side.num_refused for name, side in sides.items()}
    yield _line(kind="end", time=now, refused=refused, worked=round(worked, 3))


def _tagged(side: str, frame: bytes) -> bytes:
    return b'{"side":"%s",' % side.encode() + frame[1:] + b"\n"


def _line(**fields: Any) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


def main(arguments: list[str]) -> None:
    # Whoever serves is to have the processor first.
    with suppress(AttributeError, OSError):
        os.nice(NICENESS)
    setup = msgspec.convert(json.loads(arguments[0]), Setup)
    try:
        for line in compare(setup):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    except LooseleafError as error:
        sys.stdout.buffer.write(_line(kind="problem", message=str(error)))
    except BrokenPipeError:
        # Nobody reads any more, not even what closing would flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
