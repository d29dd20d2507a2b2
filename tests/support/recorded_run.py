"""Traffic of all kinds on a real engine, recorded; and what a planner makes of the recording."""

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

from looseleaf import SamplingParams
from looseleaf.core.counters import Counters
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.build import build
from looseleaf.engine.engine import Engine
from looseleaf.engine.journal import Journal
from looseleaf.engine.service import EngineService
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.recording import events, exact_replay, read_recording
from looseleaf.planner.replay import Replayed
from looseleaf.text.tokenizer import Tokenizer

AT_ONCE = 14


class Recorded(NamedTuple):
    steps: list[Step]
    counters: Counters
    tokenizer: Tokenizer


async def record(path: Path, num_requests: int, settings: dict[str, Any]) -> Recorded:
    """Serve random requests of 14 clients, some of whom give up, on a pool that is too small."""
    stack = build(EngineSettings(**settings))
    steps: list[Step] = []
    stack.engine.observers.append(lambda step, _: steps.append(step))
    Journal(path, stack.engine, stack.settings, stack.memory)
    service = EngineService(stack.engine, stack.tokenizer)
    service.start()
    rng = random.Random(7)
    size = min(stack.model_config.tokenizer_size, 200)
    beginnings = [[rng.randrange(size) for _ in range(rng.randrange(20, 90))] for _ in range(4)]
    seats = asyncio.Semaphore(AT_ONCE)

    async def client(number: int) -> None:
        own = [rng.randrange(size) for _ in range(rng.randrange(1, 60))]
        prompt = rng.choice([[], *beginnings]) + own
        length = rng.randrange(1, 50)
        params = SamplingParams(
            seed=number,
            n=rng.choice([1, 1, 1, 2, 3]),
            max_tokens=length,
            ignore_eos=rng.random() < 0.7,
            temperature=rng.choice([0.0, 1.0]),
            logprobs=rng.choice([None, None, 2]),
            prompt_logprobs=rng.random() < 0.05,
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        )
        beams = None
        if rng.random() < 0.15:
            width = rng.randrange(1, 5)
            beams = BeamSearchParams(beam_width=width, max_tokens=length, stop=("zq",))
            params = SamplingParams(n=width, max_tokens=length, seed=0)
        patience = rng.randrange(1, 9) if rng.random() < 0.2 else None
        async with seats:
            group = service.submit(prompt, params, priority=rng.randrange(3), beams=beams)
            pieces = 0
            async for _ in service.stream(group):
                pieces += 1
                if pieces == patience:
                    break

    try:
        await asyncio.gather(*(client(number) for number in range(num_requests // 2)))
        await service.call(Engine.forget_cache)
        await asyncio.gather(*(client(number) for number in range(num_requests // 2)))
    finally:
        await service.stop()
    return Recorded(steps, stack.engine.scheduler.counters, stack.tokenizer)


def replayed(path: Path, tokenizer: Tokenizer) -> tuple[list[Step], Counters, Replayed]:
    recording = read_recording(path)
    replay = exact_replay(recording)
    steps: list[Step] = []

    def observe(step: Step, _: StepResult) -> None:
        steps.append(step)

    replay.engine.observers.append(observe)
    result = replay.run(events(recording, tokenizer))
    return steps, replay.engine.scheduler.counters, result


def assert_same(path: Path, recorded: Recorded) -> Replayed:
    steps, counters, result = replayed(path, recorded.tokenizer)
    for ours, theirs in zip(steps, recorded.steps, strict=False):
        assert ours == theirs
    assert len(steps) == len(recorded.steps)
    assert counters == recorded.counters
    return result
