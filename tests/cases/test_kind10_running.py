"""Cases of kind 10 about planners that are to be what they plan (../shared/cases/open.md)."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from planning import linear_times

from looseleaf import LLM, SamplingParams
from looseleaf.core.block_tables import BlockTables
from looseleaf.engine.build import build_scheduler
from looseleaf.engine.journal import Journal
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.plan import run_plan
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.replay import planned_scheduler
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace_types import Trace, TraceRequest


def planned(trace: Trace, num_blocks: int, **asked: Any) -> Summary:
    settings = EngineSettings(**({"max_num_batched_tokens": 2048} | asked))
    memory = MemoryPlan(num_blocks, 16, 1, num_blocks * 16)
    return run_plan(trace, settings, memory, linear_times()).summary


def test_c168_in_a_closed_loop_speed_rises_until_memory_is_full_and_then_stays() -> None:
    """Each request comes to hold 16 blocks, and there are 16 for each of 68."""
    requests = (TraceRequest(0.0, 200, 56),) * 300
    speeds, peaks = [], []
    for users in (4, 16, 64, 300):
        s = planned(Trace(requests, (), True, 16, users), 68 * 16, max_num_seqs=1024)
        assert s.requests == 300
        speeds.append(s.output_tokens_per_second)
        peaks.append(s.running_peak)
    assert peaks[:3] == [4, 16, 64]
    assert max(peaks) <= 82, "of 13 blocks, those of the prompt"
    assert all(later > 0.98 * earlier for earlier, later in itertools.pairwise(speeds))
    assert speeds[2] > 1.2 * speeds[0]
    assert speeds[-1] < 1.1 * speeds[2]


def test_c168_what_gave_way_is_found_only_until_it_is_overwritten() -> None:
    """The first grows into the second's blocks: by few of them, by some, and by all."""
    again = []
    for grows in (30, 80, 300):
        requests = (TraceRequest(0.0, 160, grows), TraceRequest(0.001, 150, 60))
        s = planned(Trace(requests, (), True, 16), 22, admission_headroom=0)
        assert s.preemptions > 0
        again.append(s.recomputed_tokens)
    assert again[0] < 16
    assert again[0] < again[1] < again[2]
    assert again[2] > 150


def test_c168_planner_and_engine_have_one_block_manager() -> None:
    settings, memory = EngineSettings(), MemoryPlan(10, 16, 1, 160)
    ours, theirs = planned_scheduler(settings, memory), build_scheduler(settings, memory)
    assert type(ours) is type(theirs)
    assert type(ours.allocator) is type(theirs.allocator) is BlockTables


def test_c169_what_was_recorded_has_the_same_hit_rate_when_it_is_played(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "recording"
    shared = [65 + i % 60 for i in range(320)]
    with LLM(str(tiny_model), kv_cache_memory=2**21) as llm:
        Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        for i in range(20):
            llm.generate([[*shared, *[130 + i] * (5 + i)]], params)
        counters = llm.engine.scheduler.counters
        measured = counters.prefix_hits / counters.prefix_queries
        num_blocks = llm.stack.memory.num_blocks
    s = planned(read_workload(path), num_blocks)
    assert s.requests == 20
    assert measured > 0.85
    assert s.hit_rate == pytest.approx(measured, abs=0.01)


def test_c176_the_overhead_of_steps_is_in_the_times_and_the_error_beside_them(
    call: Any, tmp_path: Path
) -> None:
    """A machine whose steps take 4 ms whatever they compute."""
    measured = {"machine": "a slow host", "residuals": {"decode": {"median": 0.021, "p95": 0.083}}}
    model = CalibratedModel(coefficients=(0.004, *[0.0] * (NUM_FEATURES - 1)), measured=measured)
    model.save(tmp_path / "host.json")
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 20, "output_length": 11}
    trace.write_text("".join(json.dumps(row | {"timestamp": 2 * i}) + "\n" for i in range(4)))
    command = (
        *("plan", str(trace), "--model", "Qwen/Qwen3-0.6B", "--hardware", "epyc-9654"),
        *("--memory", "16GiB", "--calibration", str(tmp_path / "host.json")),
    )
    summary = call(*command, "--json").json["summary"]
    assert summary["tpot"]["max"] == pytest.approx(0.004)
    # The second came 2 ms after the first, and waits for the end of the step that it missed.
    assert summary["ttft"]["max"] == pytest.approx(0.006)
    said = call(*command).out
    assert (
        "calibrated on a slow host; error: decode steps 2.1% in the middle, 8.3% in 19 of 20"
        in said
    )
