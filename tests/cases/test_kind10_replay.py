"""Cases of kind 10 that are about replays (../shared/cases/open.md)."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planning import linear_times, request

from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.hit_rate import lru_hit_rate
from looseleaf.planner.plan import Traffic, run_plan
from looseleaf.planner.replay import Replay, planned_scheduler
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace import read_trace
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.planner.workload import arrival
from looseleaf.sampling.params import SamplingParams


def played(
    requests: list[TraceRequest], *, num_blocks: int, hashed: int = 512, **settings: int
) -> Summary:
    asked = EngineSettings(**({"max_num_batched_tokens": 2048} | settings))  # type: ignore[arg-type]
    memory = MemoryPlan(num_blocks, asked.block_size, 1, num_blocks * asked.block_size)
    trace = Trace(tuple(requests), (), True, hashed)
    return run_plan(trace, asked, memory, linear_times()).summary


def test_c168_more_clients_than_fit_do_not_make_it_faster() -> None:
    """A pool for 68 requests: the speed rises up to there and then stays."""
    size, num_blocks = 16, 68 * 16
    speeds = []
    for clients in (8, 32, 64, 128, 256, 1024):
        requests = [TraceRequest(0.0, 200, 56)] * clients
        s = played(requests, num_blocks=num_blocks, block_size=size, max_num_seqs=1024)
        assert s.running_peak <= 82, "of 13 blocks, those of the prompt"
        assert s.requests == clients
        speeds.append(s.output_tokens_per_second)
    assert all(later > 0.98 * earlier for earlier, later in itertools.pairwise(speeds))
    assert speeds[-1] < 1.1 * speeds[2]


def test_c169_a_shared_prefix_is_found_again(tmp_path: Path) -> None:
    """14,336 tokens that all prompts begin with: the trace names them by hashes."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 60_000 * i,
            "input_length": 14_336 + 100,
            "output_length": 3,
            "hash_ids": [*range(28), 1000 + i],
        }
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert trace.hashed_tokens == 512
    s = played(list(trace.requests), num_blocks=2000)
    assert s.prefix_hits == 19 * 14_336
    assert s.hit_rate == pytest.approx(19 * 14_336 / (20 * 14_436))


def test_c172_a_report_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"input_length": %d, "output_length": %d}\n'
    path.write_text("".join(row % (100 + 37 * i % 900, 1 + 13 * i % 80) for i in range(200)))
    command = [
        *(sys.executable, "-m", "looseleaf", "plan", str(path), "--rate", "20", "--json"),
        *("--model", "meta-llama/Llama-3.1-8B", "--hardware", "L4", "--num-blocks", "500"),
    ]
    reports = [
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert reports[0] == reports[1]
    assert json.loads(reports[0])["summary"]["requests"] == 200


def test_c173_the_engine_finds_what_an_endless_cache_would() -> None:
    """One request after the other, with room for all: block by block the same hits."""
    prompts = [(1, 2, 3), (1, 2, 4, 5), (1, 9), (1, 2, 3), (7,), (1, 2, 4, 5, 6)]
    requests = [
        TraceRequest(100.0 * i, 512 * len(ids) + 1, 1, ids) for i, ids in enumerate(prompts)
    ]
    s = played(requests, num_blocks=100, block_size=512)
    assert s.prefix_hits == 512 * lru_hit_rate(prompts) * sum(map(len, prompts))


def test_c173_more_room_never_finds_less() -> None:
    prompts = [tuple(range(i * i % 7, i * i % 7 + 5)) for i in range(60)]
    requests = [TraceRequest(100.0 * i, 512 * 5 + 1, 1, ids) for i, ids in enumerate(prompts)]
    rates = [played(requests, num_blocks=n, block_size=512).hit_rate for n in (6, 8, 10, 20, 40)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_c176_a_step_has_its_overhead_before_anything_is_answered() -> None:
    """A request that comes while a step is computed waits for its end, and for a step of its own
    with what each step takes: 4 ms here."""
    scheduler = planned_scheduler(EngineSettings(), MemoryPlan(100, 16, 1, 1600))
    executor = PlannedExecutor(linear_times(), VirtualClock())
    params = SamplingParams(max_tokens=50, ignore_eos=True, seed=0)
    outcomes = (
        Replay(scheduler, executor)
        .run(
            [
                arrival(0.0, lambda: request("a", [1] * 100, params, 0.0)),
                arrival(0.001, lambda: request("b", [3] * 10, params, 0.001)),
            ]
        )
        .outcomes
    )
    first, second = sorted(outcomes)
    assert first.first_token is not None
    assert second.first_token is not None
    assert second.scheduled == first.first_token
    assert second.first_token > first.first_token + 0.004


def test_traffic_can_be_faster_shorter_or_drawn_at_random() -> None:
    trace = Trace(tuple(TraceRequest(float(i), 1, 1) for i in range(10)), (), True, 512)
    assert [r.arrival for r in Traffic(speed=2, limit=3).of(trace).requests] == [0, 0.5, 1]
    drawn = [r.arrival for r in Traffic(rate=1000).of(trace).requests]
    assert max(r or 0 for r in drawn) < 1
