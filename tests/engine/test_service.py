import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from looseleaf import CapacityError, SamplingParams
from looseleaf.core import invariants
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.build import build
from looseleaf.engine.llm import LLM
from looseleaf.engine.service import EngineDeadError, EngineService
from looseleaf.engine.settings import EngineSettings

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
async def service(tiny_model: Path) -> AsyncIterator[EngineService]:
    stack = build(EngineSettings(model=str(tiny_model), kv_cache_memory=2**20))
    service = EngineService(stack.engine, stack.tokenizer)
    service.start()
    yield service
    if service.failure is None:
        await service.call(lambda engine: invariants.check(engine.scheduler))
    await service.stop()


async def collect(service: EngineService, prompt: list[int], params: SamplingParams) -> list[tuple]:
    group = service.submit(prompt, params)
    async for _ in service.stream(group):
        pass
    return [(tuple(s.token_ids), s.text, str(s.finish_reason)) for s in group.samples]


async def idle(service: EngineService) -> None:
    """Every block is free or evictable."""

    def state(engine):
        scheduler = engine.scheduler
        allocator = scheduler.allocator
        return scheduler.has_work, allocator.num_available, allocator.num_blocks

    has_work, available, total = await service.call(state)
    assert not has_work
    assert available == total


async def test_concurrent_streams_equal_the_offline_answers(service, tiny_model) -> None:
    prompts = [[1, 2, 3, 4 + i] for i in range(20)]
    params = SamplingParams(temperature=1.0, seed=5, n=2, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        expected = [
            [(s.token_ids, s.text, s.finish_reason) for s in output.outputs]
            for output in llm.generate(prompts, params)
        ]
    got = await asyncio.gather(*(collect(service, prompt, params) for prompt in prompts))
    assert got == expected
    await idle(service)


async def test_leaving_a_stream_frees_its_blocks_at_once(service) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    group = service.submit([1, 2, 3], long)
    stream = service.stream(group)
    async for _ in stream:
        break
    await stream.aclose()
    await idle(service)
    assert group.num_output_tokens < 400


async def test_half_the_clients_leave_and_the_others_are_not_disturbed(service) -> None:
    async def impatient(prompt: list[int]) -> None:
        stream = service.stream(service.submit(prompt, GREEDY))
        async for _ in stream:
            break
        await stream.aclose()

    prompts = [[7, 8, 9, i] for i in range(32)]
    alone = [await collect(service, prompt, GREEDY) for prompt in prompts[::2]]
    got = await asyncio.gather(
        *(
            collect(service, prompt, GREEDY) if i % 2 == 0 else impatient(prompt)
            for i, prompt in enumerate(prompts)
        )
    )
    assert got[::2] == alone
    await idle(service)


async def test_a_stop_string_ends_the_request_in_the_engine_too(service) -> None:
    free = SamplingParams(temperature=1.0, seed=3, max_tokens=300, ignore_eos=True)
    ((_, text, _),) = await collect(service, [1, 2, 3], free)
    stop = text[10:12]
    stopped = SamplingParams(temperature=1.0, seed=3, max_tokens=300, ignore_eos=True, stop=(stop,))
    ((ids, shown, reason),) = await collect(service, [1, 2, 3], stopped)
    assert shown == text[: text.index(stop)]
    assert reason == "stop"
    assert len(ids) < 300
    await idle(service)


async def test_what_can_never_fit_is_refused_at_once(service) -> None:
    with pytest.raises(CapacityError, match="600 tokens"):
        service.submit([1] * 600, GREEDY)
    assert await collect(service, [1, 2], GREEDY)


async def test_an_error_in_a_command_reaches_its_caller_only(service) -> None:
    def fail(engine):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await service.call(fail)
    assert await collect(service, [1, 2], GREEDY)


async def test_a_dead_engine_tells_everyone(tiny_model: Path, caplog) -> None:
    stack = build(EngineSettings(model=str(tiny_model), kv_cache_memory=2**20))
    service = EngineService(stack.engine, stack.tokenizer)
    service.start()

    def break_down(step: Step, result: StepResult) -> None:
        raise RuntimeError("the roof came down")

    group = service.submit([1, 2, 3], GREEDY)
    stack.engine.observers.append(break_down)
    with pytest.raises(EngineDeadError, match="the roof came down"):
        async for _ in service.stream(group):
            pass
    with pytest.raises(EngineDeadError, match="restart"):
        service.submit([1], GREEDY)
    with pytest.raises(EngineDeadError, match="restart"):
        await service.call(lambda engine: None)
    assert "the engine failed" in caplog.text
    await service.stop()


async def test_stopping_tells_everyone_who_waits(tiny_model: Path) -> None:
    stack = build(EngineSettings(model=str(tiny_model), kv_cache_memory=2**20))
    service = EngineService(stack.engine, stack.tokenizer)
    service.start()
    long = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)

    begun = asyncio.Event()

    async def read() -> None:
        async for _ in service.stream(service.submit([1, 2, 3], long)):
            begun.set()

    reading = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 10)
    await service.stop()
    with pytest.raises(EngineDeadError, match="stopped"):
        await reading
    with pytest.raises(EngineDeadError, match="stopped"):
        await service.call(lambda engine: None)
    with pytest.raises(EngineDeadError, match="stopped"):
        service.submit([1], GREEDY)


async def test_no_call_is_left_waiting_when_the_engine_dies(tiny_model: Path) -> None:
    stack = build(EngineSettings(model=str(tiny_model), kv_cache_memory=2**20))
    service = EngineService(stack.engine, stack.tokenizer)
    service.start()

    def break_down(step: Step, result: StepResult) -> None:
        raise RuntimeError("gone")

    stack.engine.observers.append(break_down)
    service.submit([1, 2, 3], GREEDY)
    calls = [service.call(lambda engine: engine.has_work) for _ in range(20)]
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert all(result is True or isinstance(result, EngineDeadError) for result in results)
    await service.stop()
