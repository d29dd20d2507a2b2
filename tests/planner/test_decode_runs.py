"""Many steps at once come to what the engine comes to step by step: same times, same blocks."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from planning import linear_times, mixed_arrivals, request

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.invariants import check
from looseleaf.core.scheduler import Scheduler
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.replay import Replay, Replayed, planned_scheduler
from looseleaf.planner.workload import Event, arrival
from looseleaf.sampling.params import SamplingParams


def replay(
    arrivals: list[Event],
    *,
    every_step: bool,
    num_blocks: int = 60,
    windows: tuple[int | None, ...] = (None,),
    **settings: Any,
) -> tuple[Replayed, Scheduler]:
    asked = EngineSettings(**({"max_num_batched_tokens": 64, "max_num_seqs": 8} | settings))
    memory = MemoryPlan(num_blocks, asked.block_size, 1, num_blocks * asked.block_size)
    scheduler = planned_scheduler(asked, memory)
    executor = PlannedExecutor(linear_times(windows), VirtualClock())
    result = Replay(scheduler, executor, every_step=every_step).run(arrivals)
    check(scheduler)
    return result, scheduler


def state(result: Replayed, scheduler: Scheduler) -> dict[str, Any]:
    found: dict[str, Any] = {
        "outcomes": result.outcomes,
        "refused": result.refused,
        "steps": result.steps,
        "counters": scheduler.counters,
    }
    if isinstance(scheduler.allocator, BlockTables):
        pool = scheduler.allocator.pool
        found["free queue"] = [
            (block.block_id, block.key and (block.key.hash, block.key.token_ids))
            for block in pool.free_blocks()
        ]
    return found


def compare(arrivals: Callable[[], list[Event]], **settings: Any) -> tuple[Replayed, Scheduler]:
    at_once, first = replay(arrivals(), every_step=False, **settings)
    one_by_one, second = replay(arrivals(), every_step=True, **settings)
    expected = state(one_by_one, second)
    for name, value in state(at_once, first).items():
        assert value == expected[name], name
    return at_once, first


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_blocks": 24, "admission_headroom": 0},
        {"num_blocks": 24, "admission_headroom": 40},
        {"num_blocks": 400, "max_num_seqs": 3},
        {"num_blocks": 400, "max_num_seqs": 64, "max_num_batched_tokens": 16},
        {"enable_prefix_caching": False},
        {"block_size": 1, "num_blocks": 500},
        {"block_size": 7},
        {"scheduling_policy": "priority", "num_blocks": 30},
        {"windows": (None, 20, 100)},
        {"kv_allocator": "contiguous-max", "num_blocks": 64},
        {"kv_allocator": "contiguous-oracle", "num_blocks": 61},
        {"speculative_ngram": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("gap", [0.02, 0.4])
def test_runs_of_decoding_are_the_engines_own_steps(settings: dict[str, Any], gap: float) -> None:
    result, scheduler = compare(lambda: list(mixed_arrivals(3, 80, gap)), **settings)
    assert result.num_plain_steps <= len(result.steps) == scheduler.counters.steps
    if "speculative_ngram" in settings:
        assert result.num_plain_steps == len(result.steps)
    else:
        assert result.num_plain_steps < len(result.steps)
    if settings == {"num_blocks": 24, "admission_headroom": 0}:
        assert scheduler.counters.preemptions > 5
        assert scheduler.counters.prefix_hits > 0


@example(1679050, 76, 3, 4, 4, 0, 0.0)  # a prompt's last token is a step of its own
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(16, 90),
    block_size=st.integers(1, 17),
    seats=st.integers(1, 20),
    budget=st.integers(4, 100),
    headroom=st.sampled_from([0, 16, 64]),
    gap=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_whatever_the_settings(
    seed: int, num_blocks: int, block_size: int, seats: int, budget: int, headroom: int, gap: float
) -> None:
    compare(
        lambda: list(mixed_arrivals(seed, 25, gap)),
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        admission_headroom=headroom,
    )


def test_while_memory_is_full_steps_are_taken_at_once_too() -> None:
    """Who waits for memory waits until somebody ends."""

    def crowd() -> list[Event]:
        asked = SamplingParams(max_tokens=200, ignore_eos=True, seed=0)
        return [
            arrival(0.0, lambda i=i: request(f"{i}", [2 * i + 1] * 60, asked, 0.0))  # type: ignore[misc]
            for i in range(20)
        ]

    result, scheduler = compare(crowd, num_blocks=40, max_num_seqs=64, admission_headroom=256)
    assert max(result.steps.waiting) > 10
    assert scheduler.counters.preemptions == 0
    assert result.num_plain_steps < len(result.steps) / 10
