"""A plan's page and Chrome trace, and what they are drawn from, against sums by hand."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from planning import linear_times

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.plan import Plan, run_plan
from looseleaf.planner.report import series
from looseleaf.planner.report.allocators import compare_allocators
from looseleaf.planner.report.charts import linear, logarithmic
from looseleaf.planner.report.chrome_trace import write_chrome_trace
from looseleaf.planner.report.markup import table
from looseleaf.planner.report.phases import PhaseWatch
from looseleaf.planner.report.recorded import compare, read_curves, read_measured
from looseleaf.planner.report.series import Bucket, Piece, Span, bucketed
from looseleaf.planner.report.what_if import changes, what_if
from looseleaf.planner.summary import first_token_times
from looseleaf.planner.trace_types import Trace, TraceRequest

SETTINGS = EngineSettings(max_num_batched_tokens=64, max_num_seqs=16, admission_headroom=0)
MEMORY = MemoryPlan(40, 16, 64, 640)


def crowd(num: int = 40) -> Trace:
    """Too much for the memory at first, then nothing for long, then one more."""
    requests = [
        TraceRequest(0.02 * i, 40 + i % 30, 20 + i % 25, (i % 4, 100 + i), 2 if i % 9 == 0 else 1)
        for i in range(num)
    ]
    return Trace((*requests, TraceRequest(20.0, 40, 10, (1, 99))), (), True, 16)


def planned(trace: Trace | None = None, **settings: Any) -> tuple[Plan, PhaseWatch]:
    watches: list[PhaseWatch] = []
    plan = run_plan(
        trace or crowd(),
        SETTINGS,
        MEMORY,
        linear_times(),
        on_replay=lambda replay: watches.append(PhaseWatch(replay)),
    )
    return plan, watches[0]


@pytest.fixture(scope="module")
def plan_and_watch() -> tuple[Plan, PhaseWatch]:
    return planned()


def test_buckets_hide_no_peak_and_no_time() -> None:
    pieces = [Piece(0, 1, 2.0), Piece(1, 1.25, 9.0), Piece(1.25, 2, 1.0), Piece(3, 4, 4.0)]
    assert bucketed(pieces, Span(0, 4), 4) == [
        Bucket(2.0, 2.0, 2.0),
        Bucket(0.25 * 9 + 0.75, 1.0, 9.0),
        Bucket(0.0, 0.0, 0.0),
        Bucket(4.0, 4.0, 4.0),
    ]
    assert bucketed([], Span(3, 3), 2) == [Bucket(0.0, 0.0, 0.0)] * 2


def test_curves_are_those_of_the_summary(plan_and_watch: tuple[Plan, PhaseWatch]) -> None:
    plan, _ = plan_and_watch
    steps, summary = plan.result.steps, plan.summary
    span = series.span_of(plan.result)
    assert span.length == pytest.approx(summary.duration)
    running = bucketed(series.step_pieces(steps, steps.running), span)
    assert max(b.high for b in running) == summary.running_peak
    width = span.length / series.BUCKETS
    area = sum(b.mean for b in running) * width
    assert area == pytest.approx(summary.running_mean * summary.busy)
    memory = series.memory(plan.result, MEMORY.block_size, span)
    assert [sum(shares) for shares in zip(*memory, strict=True)] == pytest.approx([1.0] * 300)
    assert max(memory.stored) > 0.5
    idle = 250  # in the long pause nobody holds anything, and much can be found
    assert memory.stored[idle] == memory.reserved[idle] == 0
    assert memory.cached[idle] > 0.3
    hits = series.hits_over_time(plan.result.outcomes, span, 60)
    assert sum(one.queries for one in hits) == summary.prefix_queries
    assert sum(one.hits for one in hits) == summary.prefix_hits > 0


def test_axes() -> None:
    axis = linear(0.0, 47.0, lambda value: f"{value:g}")
    assert [text for _, text in axis.ticks] == ["0", "10", "20", "30", "40"]
    assert axis.place(23.5) == 0.5
    axis = logarithmic(0.02, 20.0, lambda value: f"{value:g}")
    assert [text for _, text in axis.ticks] == ["0.1", "1", "10"]
    assert axis.place(0.02) == 0
    assert axis.place(20.0) == pytest.approx(1)


def test_a_chrome_trace_adds_up(plan_and_watch: tuple[Plan, PhaseWatch], tmp_path: Path) -> None:
    plan, watch = plan_and_watch
    path = tmp_path / "trace.json"
    num = write_chrome_trace(path, plan, watch, 10_000)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == num
    summary = plan.summary
    assert summary.preemptions > 5
    slices = [e for e in events if e["ph"] == "X"]
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in slices:
        assert one["dur"] >= 0
        tracks.setdefault((one["pid"], one["tid"]), []).append(one)
    for found in tracks.values():
        for one, after in pairwise(found):
            assert one["ts"] + one["dur"] <= after["ts"] + 1e-6
    steps = tracks.pop((1, 1))
    assert len(steps) == summary.steps
    assert sum(step["dur"] for step in steps) == pytest.approx(1e6 * summary.busy, rel=1e-5)
    assert max(step["args"]["running"] for step in steps) == summary.running_peak
    assert len(tracks) == summary.requests
    names = Counter(one["name"] for found in tracks.values() for one in found)
    assert names["preempted"] == names["recompute"] == summary.preemptions
    undisturbed = [o for o in plan.result.outcomes if not o.num_preemptions]
    first_tokens = sorted(
        sum(one["dur"] for one in found if one["name"] in ("queue", "prefill"))
        for found in tracks.values()
        if not any(one["name"] == "preempted" for one in found)
    )
    expected = sorted(1e6 * time for time in first_token_times(undisturbed))
    assert first_tokens == pytest.approx(expected, abs=0.01)
    assert summary.e2e is not None
    whole = [sum(one["dur"] for one in found) for found in tracks.values()]
    assert max(whole) == pytest.approx(1e6 * summary.e2e.max, rel=1e-6)
    counters = [e for e in events if e["ph"] == "C"]
    assert {e["name"] for e in counters} == {"running", "waiting", "blocks held"}
    assert counters[-1]["args"].popitem()[1] == 0
    # Only the first ones, and steps until these have ended.
    write_chrome_trace(path, plan, watch, 3)
    few = json.loads(path.read_text())["traceEvents"]
    titles = [e["args"]["name"] for e in few if e["name"] == "thread_name"]
    assert titles[0] == "steps"
    assert {re.split("[ /]", title)[1] for title in titles[1:]} == {"0", "1", "2"}
    assert len([e for e in few if e["name"] == "step"]) < summary.steps


def test_single_changes_are_replays_of_their_own() -> None:
    trace = crowd()
    ended: list[int] = []
    planned_changes = changes(SETTINGS, MEMORY, 2000)
    cases = what_if(trace, planned_changes, linear_times(), ended.append)
    by_name = {case.name: case for case in cases}
    assert [case.name for case in cases][:3] == [
        "as planned",
        "blocks of 8 tokens",
        "blocks of 32 tokens",
    ]
    assert cases[0].summary == planned()[0].summary
    assert by_name["blocks of 8 tokens"].num_blocks == 80
    assert by_name["no prefix caching"].summary.prefix_hits == 0
    half, twice = by_name["half the KV memory"], by_name["twice the KV memory"]
    assert half.summary.busy > 1.3 * twice.summary.busy
    assert twice.summary.preemptions < cases[0].summary.preemptions
    assert by_name["at most 8 sequences"].summary.running_peak <= 8
    assert ended[-1] == len(cases) * len(trace.requests)
    assert ended == sorted(ended)


def test_allocators_split_what_they_take() -> None:
    cases = {
        case.name: case
        for case in compare_allocators(crowd(20), SETTINGS, MEMORY, linear_times(), lambda _: None)
    }
    for case in cases.values():
        assert case.split is not None
        assert sum(case.split) == pytest.approx(1)
        assert case.summary.refused == 0
    paged, most = cases["paged"].split, cases["contiguous-max"].split
    assert paged is not None
    assert most is not None
    assert paged.stored > 0.7
    assert most.internal > 0.7
    assert cases["contiguous-max"].max_model_len == 512  # the largest region of 40 blocks
    assert cases["contiguous-max"].summary.running_peak == 1
    assert cases["contiguous-oracle"].split.internal < cases["contiguous-pow2"].split.internal


def test_a_recording_of_the_replay_itself_is_not_off(
    plan_and_watch: tuple[Plan, PhaseWatch], tmp_path: Path
) -> None:
    plan, _ = plan_and_watch
    steps = plan.result.steps
    curves, requests = tmp_path / "curves.csv", tmp_path / "requests.jsonl"
    rows = ["t,running,waiting,kv_cache_pct"]
    for i in range(0, len(steps), 7):
        used = 100 * (1 - steps.available[i] / MEMORY.num_blocks)
        middle = steps.starts[i] + steps.seconds[i] / 2
        rows.append(f"{middle!r},{steps.running[i]},{steps.waiting[i]},{used!r}")
    curves.write_text("\n".join(rows))
    requests.write_text(
        "\n".join(
            json.dumps(
                {
                    "queued_ts": 70 + one.arrival,
                    "first_token_ts": 70 + one.first_token,
                    "last_token_ts": 70 + one.finished,
                    "output_toks": one.num_output_tokens,
                }
            )
            for one in plan.result.outcomes
            if one.first_token is not None
        )
    )
    against = compare(plan, "curves.csv", read_curves(curves), read_measured(requests))
    assert len(against.errors) == 4
    assert all(abs(one.relative) < 1e-6 for one in against.errors)
    assert [one.difference for one in against.curve_errors] == pytest.approx([0, 0, 0])
    shifted = read_curves(curves)._replace(running=[0.0] * len(rows[1:]))
    assert compare(plan, "", shifted, None).curve_errors[0].difference > 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"),
        ("t,running\n1,2\n", "line 2: there is no waiting"),
        ("t,running,waiting\n1,x,2\n", "line 2: running is not a number"),
        ("t,running,waiting\n1,nan,2\n", "running is not a number"),
        ("t,running,waiting\n2,1,1\n1,1,1\n", "must ascend"),
    ],
)
def test_curves_that_are_none(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_curves(path)


def test_text_is_escaped() -> None:
    found = table("<b>", ["a&b"], [("<script>", '"x"')])
    assert "<script>" not in found
    assert "&lt;script&gt;" in found
    assert "a&amp;b" in found
