"""What an engine is given to do while its steps are timed, and giving it."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from looseleaf.engine.build import Stack
from looseleaf.engine.engine import Engine
from looseleaf.engine.service import EngineService
from looseleaf.planner.step_timer import StepTimer, TimedStep
from looseleaf.sampling.params import SamplingParams

PROMPTS = (3, 24, 100, 400, 1200)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SEATS = (2, 6, 16, 32)
SHARED = (512, 1536)
DOCUMENTS = ((300, 2, 8), (300, 8, 8), (1000, 1, 6), (1000, 3, 6), (1000, 6, 6), (2000, 1, 4))
"""Tokens of each, how many there are, and how many read one of them."""

VISITS = ((0, 1), (300, 1), (1000, 1), (300, 3), (1000, 2))
"""Tokens of each document, and how many there are; somebody asks one question after the other about
each."""

NUM_VISITS = 8
"""For each of them."""

VISIT_TOKENS = (8, 96)
"""Of an answer, from and to: caches warm up over some tens of steps."""

PAUSES = (0.02, 5.0)
"""Seconds after an answer, from and to: threads rest, and others use the caches."""

MOST_TOKENS = 2400
"""Of the prompts of one load: what takes longer tells little more. Twice as many for traffic."""

NUM_OUTPUT_TOKENS = 24
FEW = 4
NUM_OUTPUT_TOKENS_OF_FEW = 96
"""Steps with few sequences are short: more of them, for about as much time."""

_READER_TOKENS = 12
_MARGIN = 64
"""Tokens a sequence for which there must be room besides its own."""


class CallShape(NamedTuple):
    """A request: of its prompt's tokens the first `num_shared` are those of all of its load that
    have the same `document`. Who has asked it waits for `pause` seconds after the answer."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_shared: int = 0
    document: int = 0
    pause: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class Load(NamedTuple):
    """Requests of which `at_once` are served at any time, until all have been."""

    at_once: int
    calls: tuple[CallShape, ...]

    @property
    def num_slots(self) -> int:
        """That they take at once, at most."""
        longest = sorted(call.num_tokens - call.num_shared for call in self.calls)
        shared = sum({call.document: call.num_shared for call in self.calls}.values())
        return shared + sum(longest[-self.at_once :]) + _MARGIN * self.at_once

    def fits(self, max_num_seqs: int, max_model_len: int, num_slots: int) -> bool:
        """Whether an engine with so much room never has to preempt anybody."""
        return (
            self.at_once <= max_num_seqs
            and all(call.num_tokens <= max_model_len for call in self.calls)
            and self.num_slots <= num_slots
        )


def loads(max_num_seqs: int, max_model_len: int, num_slots: int, seed: int = 0) -> list[Load]:
    """What an engine with so much room can do without preempting anybody: requests that come all
    at once, requests of all lengths that come and go, the same with a prefix in common, prompts one
    after the other, long contexts that more or fewer sequences decode together, and questions that
    come now and then."""
    rng = random.Random(seed)
    found = [
        Load(batch, (CallShape(prompt, _num_output_tokens(batch)),) * batch)
        for prompt in PROMPTS
        for batch in BATCHES
        if batch * prompt <= max(prompt, MOST_TOKENS)
    ]
    found += [Load(seats, _traffic(rng, seats, 0)) for seats in SEATS]
    found += [Load(seats, _traffic(rng, seats, n)) for n in SHARED for seats in SEATS[::2]]
    found += [Load(1, _prompts(rng)) for _ in range(2)]
    found += [Load(num, _readers(rng, length, docs, num)) for length, docs, num in DOCUMENTS]
    found += [Load(num, _visits(rng, length, num)) for length, num in VISITS]
    return [load for load in found if load.fits(max_num_seqs, max_model_len, num_slots)]


def _num_output_tokens(batch: int) -> int:
    return NUM_OUTPUT_TOKENS_OF_FEW if batch <= FEW else NUM_OUTPUT_TOKENS


def _traffic(rng: random.Random, seats: int, num_shared: int) -> tuple[CallShape, ...]:
    """Three requests for each seat, or as many as the prompts' tokens allow; but one for each."""
    calls: list[CallShape] = []
    left = 2 * MOST_TOKENS
    longest = 1000 if not num_shared else 60
    while len(calls) < seats or (left > 0 and len(calls) < 3 * seats):
        # As long as the rest of the seats leaves room for, so that all of them are taken.
        most = max(16, min(longest, 2 * left // max(1, seats - len(calls))))
        own = _between(rng, 8, most)
        left -= own
        calls.append(CallShape(num_shared + own, _between(rng, 8, 64), num_shared))
    return tuple(calls)


def _prompts(rng: random.Random) -> tuple[CallShape, ...]:
    """Of all lengths, for hardly an answer."""
    return tuple(CallShape(_between(rng, 4, 500), 2) for _ in range(24))


def _readers(
    rng: random.Random, length: int, num_documents: int, num_readers: int
) -> tuple[CallShape, ...]:
    """One answer ends after the other, so that each number of sequences is seen for a while."""
    return tuple(
        CallShape(length + rng.randint(8, 40), _READER_TOKENS * (i + 1), length, i % num_documents)
        for i in range(num_readers)
    )


def _visits(rng: random.Random, length: int, num_documents: int) -> tuple[CallShape, ...]:
    """All but the first find their document in the cache."""
    shortest, longest = PAUSES
    return tuple(
        CallShape(
            length + _between(rng, 8, 300),
            _between(rng, *VISIT_TOKENS),
            length,
            i % num_documents,
            pause=shortest * (longest / shortest) ** rng.random(),
        )
        for i in range(NUM_VISITS * num_documents)
    )


def _between(rng: random.Random, low: int, high: int) -> int:
    """Shorter ones are as many as ones that are several times as long."""
    return min(high, int(low * math.exp(rng.random() * math.log((high + 1) / low))))


async def served_steps(
    stack: Stack, given: Sequence[Load], *, on_load: Callable[[], None] = lambda: None
) -> StepTimer:
    """Which has noted those that an engine takes for these loads. It is closed at the end."""
    service = EngineService(stack.engine, stack.tokenizer)
    timer = StepTimer(service, stack.engine, stack.memory.block_size)
    service.start()
    try:
        await time_loads(service, timer, stack.tokenizer.vocab_size, given, on_load=on_load)
        return timer
    finally:
        await service.stop()


async def time_loads(
    service: EngineService,
    timer: StepTimer,
    vocab_size: int,
    given: Sequence[Load],
    *,
    on_load: Callable[[], None] = lambda: None,
    first_number: int = 1,
    seed: int = 0,
) -> list[TimedStep]:
    """Serve each load on a service that has nothing else to do, its cache empty, and time its
    steps. Loads are numbered from `first_number` on. A first one is not timed."""
    rng = random.Random(seed)
    start = len(timer.steps)
    for number, load in enumerate([given[0], *given], first_number - 1):
        await service.call(Engine.forget_cache)
        timer.load = number if number >= first_number else None
        await _serve(service, timer, load, rng, vocab_size)
        await service.call(lambda _: None)  # until the last step has been noted
        if timer.load is not None:
            on_load()
    timer.load = None
    return timer.steps[start:]


async def _serve(
    service: EngineService, timer: StepTimer, load: Load, rng: random.Random, vocab_size: int
) -> None:
    lengths = {call.document: call.num_shared for call in load.calls}
    beginnings = {
        document: [rng.randrange(vocab_size) for _ in range(length)]
        for document, length in lengths.items()
    }
    waiting = list(load.calls)

    async def seat() -> None:
        while waiting:
            call = waiting.pop(0)
            own = call.num_prompt_tokens - call.num_shared
            prompt = beginnings[call.document] + [rng.randrange(vocab_size) for _ in range(own)]
            sent, first_step = service.clock(), len(timer.steps)
            times = await take_all(service, prompt, call.num_output_tokens)
            if call.pause and load.at_once == 1 and timer.load is not None:
                steps = _until_first_token(timer.steps[first_step:])
                timer.besides.append(times[0] - sent - steps)
            await asyncio.sleep(call.pause)

    await asyncio.gather(*(seat() for _ in range(load.at_once)))


def _until_first_token(steps: Sequence[TimedStep]) -> float:
    """Seconds that they take up to the first that draws a token."""
    total = 0.0
    for step in steps:
        total += step.seconds
        if step.summary.num_rows:
            break
    return total


async def take_all(
    service: EngineService, prompt: list[int], num_output_tokens: int
) -> list[float]:
    """Serve a request to its end. Returns the times by the service's clock at which its reader
    got tokens."""
    params = SamplingParams(temperature=0, max_tokens=num_output_tokens, ignore_eos=True)
    group = service.submit(prompt, params)
    return [service.clock() async for delta in service.stream(group) if delta.token_ids]
