"""What a replay is summed up to, against sums by hand."""

import pytest
from planning import linear_times, request

from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.replay import Replay, planned_scheduler
from looseleaf.planner.summary import Spread, Summary, as_json, as_text, spread, summarize
from looseleaf.planner.workload import Event, arrival
from looseleaf.sampling.params import SamplingParams


def summary(events: list[Event], num_blocks: int = 40, **settings: int) -> Summary:
    asked = EngineSettings(**({"max_num_batched_tokens": 64} | settings))  # type: ignore[arg-type]
    memory = MemoryPlan(num_blocks, 16, 1, num_blocks * 16)
    scheduler = planned_scheduler(asked, memory)
    executor = PlannedExecutor(linear_times(), VirtualClock())
    replay = Replay(scheduler, executor, sample_seconds=0.01)
    result = replay.run(events)
    return summarize(result, scheduler.counters, num_blocks=num_blocks, block_size=16)


def ask(time: float, name: str, prompt: list[int], length: int) -> Event:
    params = SamplingParams(max_tokens=length, ignore_eos=True, seed=0)
    return arrival(time, lambda: request(name, prompt, params, time))


def test_percentiles_lie_between_values() -> None:
    assert spread([]) is None
    assert spread([3.0]) == Spread(3, 3, 3, 3, 3, 3)
    found = spread(map(float, range(101)))
    assert found == Spread(50, 50, 90, 95, 99, 100)
    assert spread([1.0, 2.0]) == pytest.approx((1.5, 1.5, 1.9, 1.95, 1.99, 2.0))


def test_two_requests_that_share_a_prompt() -> None:
    prompt = [2] * 40
    s = summary([ask(0.0, "a", prompt, 5), ask(10.0, "b", prompt, 3)])
    assert (s.requests, s.refused, s.aborted) == (2, 0, 0)
    assert (s.prompt_tokens, s.output_tokens, s.steps) == (80, 8, 8)
    assert (s.prefix_queries, s.prefix_hits, s.hit_rate) == (80, 39, 39 / 80)
    assert (s.running_peak, s.waiting_peak, s.preemptions, s.recomputed_tokens) == (1, 0, 0, 0)
    assert s.ttft is not None
    assert s.e2e is not None
    assert s.tpot is not None
    assert s.duration == pytest.approx(10 + s.e2e.p50 * 2 - s.e2e.max)
    assert s.ttft.max < 0.02 < s.e2e.max
    # 40 tokens take 12 ms more than one.
    assert s.ttft.max - 2 * s.ttft.p50 + s.ttft.max == pytest.approx(0.0117, rel=0.05)
    assert s.busy == pytest.approx(s.e2e.mean * 2)
    assert s.kv_used_peak == 3 / 40
    assert s.kv_waste is not None
    assert 0 < s.kv_waste < 0.2
    assert s.kv_filled is not None
    assert 0.8 < s.kv_filled < 1 - s.kv_waste
    assert s.output_tokens_per_second == pytest.approx(8 / s.duration)


def test_what_is_computed_again_is_counted() -> None:
    events = [ask(0.0, f"{i}", [2 * i + 1] * 30, 60) for i in range(8)]
    s = summary(events, num_blocks=24, admission_headroom=0)
    assert s.preemptions > 0
    assert s.preempted_requests > 0
    assert s.recomputed_tokens > 0
    assert s.waiting_peak > 0
    calm = summary(events, num_blocks=80, admission_headroom=0)
    assert (calm.preemptions, calm.recomputed_tokens) == (0, 0)
    assert calm.output_tokens_per_second > s.output_tokens_per_second


def test_a_request_that_can_never_fit_is_told() -> None:
    s = summary([ask(0.0, "a", [2] * 2000, 5), ask(0.0, "b", [4] * 20, 1)])
    assert (s.requests, s.refused) == (1, 1)
    assert s.tpot is None
    assert as_json(s)["tpot"] is None
    assert "time per output token" not in as_text(s)


def test_nothing_at_all() -> None:
    s = summary([])
    assert (s.requests, s.duration, s.hit_rate, s.kv_waste) == (0, 0, 0, None)
    assert "0 requests" in as_text(s)
