"""Engines behind a router: what one replica does alone, and who gets what."""

import random
from bisect import bisect_left

import pytest
from planning import linear_times

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.plan import Plan, run_plan
from looseleaf.planner.replicas import Replicas, run_replicas
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.routing.policies import POLICIES

SETTINGS = EngineSettings(max_num_batched_tokens=128, max_num_seqs=8, admission_headroom=0)


def conversations(num: int = 60, turns: int = 4, seed: int = 1, gap: float = 0.3) -> Trace:
    """Each turn's prompt is the one before and 32 tokens more, in blocks of 16."""
    rng = random.Random(seed)
    requests = []
    for one in range(num):
        start = gap * one
        hashes = [0, 1, 10 + 1000 * one]
        for turn in range(turns):
            hashes = [*hashes, 11 + 1000 * one + 2 * turn, 12 + 1000 * one + 2 * turn]
            length = 16 * len(hashes) + rng.randrange(16)
            requests.append(TraceRequest(start, length, rng.randrange(5, 30), tuple(hashes)))
            start += 4 + 4 * rng.random()
    requests.sort(key=lambda request: request.arrival or 0.0)
    return Trace(tuple(requests), (), True, 16)


def memory(num_blocks: int = 400) -> MemoryPlan:
    return MemoryPlan(num_blocks, 16, 1, num_blocks * 16)


def routed(trace: Trace, num: int, routing: str, blocks: int = 400) -> Plan:
    return run_replicas(
        trace, SETTINGS, memory(blocks), linear_times(), num_replicas=num, routing=routing
    )


@pytest.mark.parametrize("routing", POLICIES)
def test_one_replica_is_the_engine_alone(routing: str) -> None:
    trace = conversations()
    alone = run_plan(trace, SETTINGS, memory(30), linear_times())
    one = routed(trace, 1, routing, 30)
    assert one.result.outcomes == alone.result.outcomes
    assert one.result.steps == alone.result.steps
    assert one.summary.preemptions == alone.summary.preemptions > 0
    assert one.replicas == (one.summary,)


def loop(users: int, num: int = 120, *, delay: float = 0.0, same: bool = False) -> Trace:
    """Sessions of two turns but every third, or of one turn and all the same."""
    rng = random.Random(3)
    requests = []
    for one in range(num):
        if same:
            requests.append(TraceRequest(0.0, 60, 20, delay=delay))
            continue
        first = TraceRequest(
            0.0, rng.randrange(20, 90), rng.randrange(1, 40), (1, 2), session=one, delay=delay
        )
        requests.append(first)
        if one % 3:
            told = first.num_prompt_tokens + first.num_output_tokens
            second = TraceRequest(0.0, told + 9, 7, session=one, delay=0.3, num_history=told)
            requests.append(second)
    return Trace(tuple(requests), (), True, 16, users)


@pytest.mark.parametrize(("users", "delay"), [(1, 0.0), (5, 0.25), (12, 0.01)])
def test_a_closed_loop_on_one_replica_is_the_engine_alone(users: int, delay: float) -> None:
    trace = loop(users, delay=delay)
    alone = run_plan(trace, SETTINGS, memory(30), linear_times())
    one = routed(trace, 1, "prefix-affinity", 30)
    assert one.result.outcomes == alone.result.outcomes
    assert one.result.steps == alone.result.steps
    assert one.summary == alone.summary
    assert one.replicas == (one.summary,)


@pytest.mark.parametrize("routing", POLICIES)
def test_twice_the_replicas_do_twice_as_much(routing: str) -> None:
    one, two = (routed(loop(4 * n, 120 * n, same=True), n, routing).summary for n in (1, 2))
    assert two.requests_per_second == pytest.approx(2 * one.requests_per_second, rel=0.02)
    assert one.e2e is not None
    assert two.e2e is not None
    assert two.e2e.p95 == pytest.approx(one.e2e.p95, rel=0.02)


@pytest.mark.parametrize("routing", POLICIES)
def test_a_session_begins_when_another_has_ended_anywhere(routing: str) -> None:
    plan = routed(loop(6, delay=0.1), 3, routing)
    assert plan == routed(loop(6, delay=0.1), 3, routing)
    ends = sorted(o.finished for o in plan.result.outcomes)
    later = [o for o in plan.result.outcomes if o.arrival > 0]
    for outcome in later:
        after = (outcome.arrival - pause for pause in (0.1, 0.3))
        assert any(abs(ends[bisect_left(ends, t - 1e-9)] - t) < 1e-9 for t in after)
    assert plan.summary.requests == len(loop(6).requests)
    # Each is seen by its engine no later than at the end of the step that it came in.
    steps = plan.result.steps
    longest = max(steps.seconds)
    assert all(o.scheduled is not None and o.scheduled - o.arrival <= longest for o in later)


def test_as_many_engines_as_sessions_at_once() -> None:
    """The least loaded one is then always the one that has nothing to do."""
    trace = loop(3, same=True)
    alone = run_plan(trace._replace(users=1), SETTINGS, memory(), linear_times())
    plan = routed(trace, 3, "least-loaded")
    assert plan.summary.running_peak == 1
    assert alone.summary.e2e is not None
    for outcome in plan.result.outcomes:
        assert outcome.scheduled == outcome.arrival
        took = outcome.finished - outcome.arrival
        assert took == pytest.approx(alone.summary.e2e.p50, rel=0.01)


@pytest.mark.parametrize("routing", POLICIES)
def test_nothing_is_lost_and_every_run_is_the_same(routing: str) -> None:
    trace = conversations()
    plan = routed(trace, 3, routing)
    assert plan == routed(trace, 3, routing)
    assert sorted(int(o.request_id.split("/")[0]) for o in plan.result.outcomes) == list(range(240))
    assert sum(one.requests for one in plan.replicas) == plan.summary.requests == 240
    assert sum(one.prefix_hits for one in plan.replicas) == plan.summary.prefix_hits
    assert sum(one.steps for one in plan.replicas) == plan.summary.steps == len(plan.result.steps)
    assert sum(one.busy for one in plan.replicas) == pytest.approx(3 * plan.summary.busy)
    assert max(one.running_peak for one in plan.replicas) == plan.summary.running_peak
    starts = list(plan.result.steps.starts)
    assert starts == sorted(starts)


def test_round_robin_loses_hits_that_affinity_keeps() -> None:
    trace = conversations()
    alone = run_plan(trace, SETTINGS, memory(1200), linear_times())
    by_turns, affine = routed(trace, 4, "round-robin"), routed(trace, 4, "prefix-affinity")
    assert affine.summary.hit_rate > 0.95 * alone.summary.hit_rate
    assert by_turns.summary.hit_rate < 0.8 * affine.summary.hit_rate
    (warning,) = [w for w in by_turns.warnings if "lowers the hit rate" in w]
    assert "round-robin over 4 replicas" in warning
    assert "prefix-affinity" in warning
    assert not any("lowers the hit rate" in w for w in affine.warnings)
    # ... and does not pay for it with one replica that does all the work.
    assert max(one.requests for one in affine.replicas) < 1.5 * 240 / 4


def test_a_step_being_computed_has_given_nothing_yet() -> None:
    """One long prompt on each replica but one, which ends just after the next request comes."""
    requests = [
        TraceRequest(0.0, 100, 1),
        TraceRequest(0.001, 100, 1),
        TraceRequest(0.002, 100, 1),
        TraceRequest(0.003, 100, 1),
        TraceRequest(0.030, 10, 1),
    ]
    replicas = Replicas(SETTINGS, memory(), linear_times(), num_replicas=2, routing="least-loaded")
    replicas.run(Trace(tuple(requests), (), True, 16))
    # 100 tokens take 34 ms and a step can be no longer than 128 tokens: nobody has ended by then.
    assert replicas.parts == [[0, 2, 4], [1, 3]]


def test_affinity_yields_to_load() -> None:
    """All share one prefix: a single replica would have all to do."""
    trace = Trace(
        tuple(TraceRequest(0.01 * i, 200, 20, (0, 1, 2, 3, 4, 5, 6, 100 + i)) for i in range(60)),
        (),
        True,
        16,
    )
    plan = routed(trace, 3, "prefix-affinity")
    assert min(one.requests for one in plan.replicas) >= 15
    assert plan.summary.hit_rate > 0.4


def test_samples_and_what_can_never_fit() -> None:
    requests = [TraceRequest(0.1 * i, 50, 10, num_samples=3) for i in range(9)]
    requests.append(TraceRequest(2.0, 10**5, 1))
    plan = routed(Trace(tuple(requests), (), True, 16), 3, "least-loaded")
    assert plan.summary.requests == 27
    assert plan.summary.refused == 1
    assert any("can never fit" in warning for warning in plan.warnings)


def test_prefixes_that_fill_no_block() -> None:
    requests = tuple(TraceRequest(0.1 * i, 40, 4, (0, 10 + i)) for i in range(20))
    trace = Trace(requests, (), True, 16)
    settings = EngineSettings(block_size=32, max_num_batched_tokens=128)
    plan = run_plan(trace, settings, MemoryPlan(100, 32, 1, 3200), linear_times())
    assert any("19 of 20 prompts share less than a block of 32" in w for w in plan.warnings)
    assert plan.summary.prefix_hits == 19 * 16  # found all the same
    plan = run_plan(trace, SETTINGS, memory(), linear_times())
    assert not any("share less than a block" in warning for warning in plan.warnings)


def test_mistakes() -> None:
    for num, routing, words in ((0, "round-robin", "replicas is 0"), (2, "random", "'random'")):
        with pytest.raises(ConfigError, match=words):
            routed(conversations(1), num, routing)
