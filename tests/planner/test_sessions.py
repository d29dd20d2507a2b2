"""Requests that wait for others: the same by runs of decoding as step by step, and as they should
be."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import linear_times

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.invariants import check
from looseleaf.core.request import FinishReason
from looseleaf.core.scheduler import Scheduler
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.agenda import Agenda, Event
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.distribution import Exponential, Uniform
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.plan import Traffic, run_plan
from looseleaf.planner.replay import Replay, Replayed, planned_scheduler
from looseleaf.planner.synthetic import Arrivals, SharedPrefix, TrafficClass, Workload, synthesize
from looseleaf.planner.trace import BadRow, read_trace
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.planner.workload import arrivals


def replay(
    trace: Trace, *, every_step: bool = False, num_blocks: int = 400, **settings: Any
) -> tuple[Replayed, Scheduler]:
    asked = EngineSettings(**({"max_num_batched_tokens": 64, "max_num_seqs": 8} | settings))
    memory = MemoryPlan(num_blocks, asked.block_size, 1, num_blocks * asked.block_size)
    scheduler = planned_scheduler(asked, memory)
    player = Replay(
        scheduler, PlannedExecutor(linear_times(), VirtualClock()), every_step=every_step
    )
    result = player.run(
        arrivals(trace.requests, hashed_tokens=trace.hashed_tokens, users=trace.users)
    )
    check(scheduler)
    return result, scheduler


def compare(trace: Trace, **settings: Any) -> tuple[Replayed, Scheduler]:
    at_once, first = replay(trace, **settings)
    one_by_one, second = replay(trace, every_step=True, **settings)
    assert at_once.outcomes == one_by_one.outcomes
    assert at_once.refused == one_by_one.refused
    assert at_once.steps == one_by_one.steps
    assert first.counters == second.counters
    if isinstance(first.allocator, BlockTables) and isinstance(second.allocator, BlockTables):
        kept, expected = (
            [
                (b.block_id, b.key and (b.key.hash, b.key.token_ids))
                for b in tables.pool.free_blocks()
            ]
            for tables in (first.allocator, second.allocator)
        )
        assert kept == expected
    return at_once, first


def mixed(seed: int, num: int, *, rate: float = 4.0, users: int | None = None) -> Trace:
    """Sessions, beams, samples, clients that go away, priorities and shared beginnings."""
    closed = Arrivals(process="closed", users=users, think=Exponential(0.3))
    chat = TrafficClass(
        name="chat",
        prompt=Uniform(1, 60),
        output=Uniform(1, 40),
        weight=4,
        turns=Uniform(1, 5),
        think=Exponential(0.5),
        shared_prefix=SharedPrefix(length=48, groups=3, share=0.7, zipf=1.0),
        abort_share=0.3,
        abort_after=Uniform(1, 30),
    )
    samples = TrafficClass(
        name="samples",
        prompt=Uniform(1, 90),
        output=Uniform(1, 30),
        num_samples=3,
        turns=Uniform(1, 2),
        abort_share=0.5,
        abort_after=Uniform(1, 20),
        priority=1,
    )
    beams = TrafficClass(
        name="beams", prompt=Uniform(1, 30), output=Uniform(1, 9), beam_width=2, turns=Uniform(1, 2)
    )
    return synthesize(
        Workload(
            arrivals=Arrivals(process="poisson", rate=rate) if users is None else closed,
            classes=(chat, samples, beams),
            num_requests=num,
            seed=seed,
        )
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_blocks": 26, "admission_headroom": 0},
        {"max_num_seqs": 3},
        {"scheduling_policy": "priority", "num_blocks": 40},
        {"enable_prefix_caching": False, "block_size": 7},
        {"kv_allocator": "contiguous-oracle"},
    ],
    ids=str,
)
@pytest.mark.parametrize("users", [None, 5])
def test_runs_end_where_somebody_could_come_or_go(
    settings: dict[str, Any], users: int | None
) -> None:
    result, scheduler = compare(mixed(5, 70, users=users), **settings)
    reasons = {outcome.reason for outcome in result.outcomes}
    assert FinishReason.ABORT in reasons
    if "kv_allocator" not in settings:
        assert result.num_plain_steps < len(result.steps)
    if settings.get("num_blocks") == 26:
        assert scheduler.counters.preemptions > 0


@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(20, 90),
    block_size=st.integers(1, 17),
    seats=st.integers(1, 20),
    rate=st.sampled_from([0.3, 5.0, 500.0]),
    users=st.sampled_from([None, 1, 4]),
)
def test_whatever_the_settings(
    seed: int, num_blocks: int, block_size: int, seats: int, rate: float, users: int | None
) -> None:
    compare(
        mixed(seed, 15, rate=rate, users=users),
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=seats,
    )


def alone(trace: Trace, **settings: Any) -> list[Any]:
    result, _ = replay(trace, max_num_batched_tokens=512, **settings)
    return sorted(result.outcomes, key=lambda outcome: int(outcome.request_id.split("/")[0]))


def test_a_turn_waits_for_the_answer_and_finds_all_that_was_said() -> None:
    requests = (
        TraceRequest(0.0, 100, 21, session=1),
        TraceRequest(0.5, 100 + 21 + 30, 5, session=1, delay=0.5, num_history=121),
        # Not before its own time, however short the wait.
        TraceRequest(50.0, 151 + 5 + 9, 5, session=1, num_history=156),
    )
    first, second, third = alone(Trace(requests, (), True, 16))
    assert second.arrival == first.finished + 0.5
    assert third.arrival == 50.0
    # The newest token of an answer is never stored.
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 120)
    assert third.num_cached_tokens == 155


def test_who_goes_away_frees_the_memory_and_goes_on_from_what_was_said() -> None:
    requests = (
        TraceRequest(0.0, 100, 200, session=1, leaves_after=7, num_samples=2),
        TraceRequest(1.0, 100 + 7 + 20, 3, session=1, delay=1.0, num_history=107),
        TraceRequest(0.0, 10, 2),
    )
    trace = Trace(requests, (), True, 16)
    compare(trace, max_num_batched_tokens=512)
    first, other, later, bystander = alone(trace)
    assert (first.reason, other.reason) == (FinishReason.ABORT, FinishReason.ABORT)
    assert (first.num_output_tokens, later.num_prompt_tokens) == (7, 127)
    assert later.num_cached_tokens == 106
    assert later.arrival == first.finished + 1
    assert bystander.reason is FinishReason.LENGTH


def test_a_session_goes_on_after_what_can_never_fit() -> None:
    requests = (
        TraceRequest(0.0, 10**5, 2, session="a"),
        TraceRequest(3.0, 20, 2, session="a", delay=3.0),
    )
    result, _ = replay(Trace(requests, (), True, 16))
    assert [refused.arrival for refused in result.refused] == [0.0]
    assert [outcome.arrival for outcome in result.outcomes] == [3.0]


def test_a_beam_search_has_its_answers_and_a_turn_after_it() -> None:
    requests = (
        TraceRequest(0.0, 40, 8, session=1, beam_width=3),
        TraceRequest(0.0, 40 + 8 + 5, 4, session=1, num_history=48),
    )
    *beams, later = alone(Trace(requests, (), True, 16))
    assert [beam.num_output_tokens for beam in beams] == [8, 8, 8]
    assert [beam.is_first for beam in beams] == [True, False, False]
    assert later.arrival == beams[0].finished
    assert later.num_cached_tokens >= 40


@pytest.mark.parametrize("users", [1, 3, 8])
def test_a_closed_loop_has_so_many_at_once(users: int) -> None:
    requests = tuple(TraceRequest(0.0, 20, 10) for _ in range(12))
    result, _ = replay(Trace(requests, (), True, 16, users))
    ended = sorted(result.outcomes, key=lambda outcome: outcome.finished)
    assert len(ended) == 12
    assert max(result.steps.running) == min(users, 8)
    for outcome in ended:
        alive = sum(o.arrival <= outcome.arrival < o.finished for o in ended)
        assert alive == users or outcome.arrival >= ended[12 - users].finished


def test_users_of_a_closed_loop_pause() -> None:
    requests = tuple(TraceRequest(0.0, 20, 3, delay=2.5) for _ in range(4))
    outcomes = alone(Trace(requests, (), True, 16, 1))
    assert outcomes[0].arrival == 0
    assert [b.arrival - a.finished for a, b in pairwise(outcomes)] == pytest.approx([2.5] * 3)


def rows(path: Path, *found: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def test_mooncake_sessions(tmp_path: Path) -> None:
    """Rows with hashes tell whole prompts, and those without what is new."""
    path = rows(
        tmp_path / "trace.jsonl",
        {"session_id": "a", "timestamp": 1000, "input_length": 1000, "output_length": 24}
        | {"hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 1500, "input_length": 300, "output_length": 40},
        {"session_id": "a", "delay": 250, "input_length": 1500, "output_length": 8}
        | {"hash_ids": [1, 2, 3], "timestamp": None},
        {"session_id": "b", "delay_ms": 2000, "input_length": 150, "output_length": 20},
        {"session_id": "b", "timestamp": 9000, "input_length": 10, "output_length": 5},
        {"session_id": ["c"], "timestamp": 1, "input_length": 1, "output_length": 1},
        {"session_id": "b", "delay": -3, "input_length": 1, "output_length": 1},
        {"timestamp": 1250, "input_length": 7, "output_length": 1, "hash_ids": None},
    )
    trace = read_trace(path)
    assert trace.bad_rows == (
        BadRow(6, "session_id is neither a text nor a whole number"),
        BadRow(7, "delay is -3, but it must be a number from 0 to 2^53"),
    )
    assert trace.hashed_tokens == 512
    assert trace.requests == (
        TraceRequest(0.0, 1000, 24, (1, 2), session="a"),
        TraceRequest(0.25, 1500, 8, (1, 2, 3), session="a", delay=0.25),
        TraceRequest(0.25, 7, 1),
        TraceRequest(0.5, 300, 40, session="b"),
        TraceRequest(2.5, 490, 20, session="b", delay=2.0, num_history=340),
        TraceRequest(8.0, 520, 5, session="b", num_history=510),
    )


def test_sessions_keep_their_pauses_whenever_they_begin(tmp_path: Path) -> None:
    turn = {"input_length": 10, "output_length": 2}
    path = rows(
        tmp_path / "trace.jsonl",
        *({"session_id": i, "delay": 100 * j} | turn for i in range(200) for j in range(4)),
    )
    trace = read_trace(path)
    assert not trace.timed
    timed = Traffic(rate=8).of(trace)
    starts = [r.arrival or 0.0 for r in timed.requests if not r.num_history]
    # Eight requests a second are two sessions of four.
    assert len(starts) / starts[-1] == pytest.approx(2, rel=0.2)
    assert sorted(r.arrival or 0.0 for r in timed.requests) == [r.arrival for r in timed.requests]
    faster = Traffic(rate=8, speed=2).of(trace)
    assert [r.delay for r in faster.requests] == [r.delay / 2 for r in timed.requests]
    loop = Traffic(concurrency=3, limit=20).of(trace)
    assert (loop.users, len(loop.requests)) == (3, 20)
    plan = run_plan(loop, EngineSettings(), MemoryPlan(400, 16, 1, 6400), linear_times())
    assert plan.summary.requests == 20
    assert plan.summary.running_peak <= 3
    assert plan.summary.prefix_hits > 0
    assert 5 < len(plan.result.usage) < 400


def test_an_agenda_keeps_the_order() -> None:
    told: list[str] = []

    def event(time: float, name: str) -> Event:
        return Event(time, lambda _: told.append(name))

    agenda = Agenda()
    agenda.follow([event(1, "a"), event(2, "b"), event(2, "c")])
    agenda.add(event(2, "d"))
    agenda.add(event(2, "e"))
    agenda.add(event(1.5, "f"))
    times = []
    while agenda.time < float("inf"):
        times.append(agenda.time)
        agenda.pop().act(None)  # type: ignore[arg-type]
    assert told == ["a", "f", "b", "c", "d", "e"]
    assert times == [1, 1.5, 2, 2, 2, 2]
    with pytest.raises(IndexError):
        agenda.pop()


def test_a_run_that_was_broken_off_goes_on() -> None:
    """As it is when something else looks at the engine before it goes on."""
    trace = mixed(3, 30)
    expected, _ = replay(trace)

    class Stop(Exception):
        pass

    def stop(_: Any) -> None:
        raise Stop

    settings = EngineSettings(max_num_batched_tokens=64, max_num_seqs=8)
    scheduler = planned_scheduler(settings, MemoryPlan(400, 16, 1, 6400))
    player = Replay(scheduler, PlannedExecutor(linear_times(), VirtualClock()))
    starting = list(arrivals(trace.requests, hashed_tokens=trace.hashed_tokens))
    until = starting[-1].time + 0.5
    with pytest.raises(Stop):
        player.run([*starting, Event(until, stop)])
    assert player.has_work
    result = player.run([])
    assert not player.has_work
    assert result.outcomes == expected.outcomes
