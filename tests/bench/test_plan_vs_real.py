"""The pieces of benchmarks/plan_vs_real.py: its workloads, its runs, its verdicts."""

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from looseleaf.engine.build import build_scheduler
from looseleaf.engine.engine import Engine
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.service import EngineService
from looseleaf.engine.settings import EngineSettings
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.step_timer import StepTimer
from looseleaf.planner.trace_types import TraceRequest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("plan_vs_real", BENCHMARKS / "plan_vs_real.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plan_vs_real", module)
    spec.loader.exec_module(module)
    return module


def model() -> CalibratedModel:
    return CalibratedModel(coefficients=(0.001,) * NUM_FEATURES, measured={})


TOKENIZER = SimpleNamespace(
    eos_token_ids=frozenset(),
    adds_leading_space=False,
    is_special=lambda token_id: False,
    token_bytes=lambda token_id: b"x",
)


class Scripted:
    """What `start_engine` makes, without a model."""

    def __init__(self, num_blocks: int, **settings: Any) -> None:
        self.settings = EngineSettings(max_num_batched_tokens=64, **settings)
        self.memory = MemoryPlan(num_blocks, 16, 1, 2048)
        scheduler = build_scheduler(self.settings, self.memory)
        executor = ScriptedExecutor(num_blocks, 16, lambda name, position: 5, vocab_size=40_000)
        self.engine = Engine(scheduler, executor)
        self.service = EngineService(self.engine, TOKENIZER)  # type: ignore[arg-type]


def test_workloads_are_the_same_every_time(bench: ModuleType) -> None:
    for make in bench.WORKLOADS.values():
        workload = make(30, 1.0, 3)
        assert workload == make(30, 1.0, 3) != make(30, 1.0, 4)
        arrivals = [request.arrival for request in workload.requests]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] == 0
        assert len(make(60, 1.0, 3).requests) > len(arrivals)
        for index, request in enumerate(workload.requests):
            assert len(bench.prompt_of(request, index)) == request.num_prompt_tokens
    assert {request.arrival for request in bench.burst(30, 1.0, 0).requests} == {0}


def test_prompts_are_equal_where_their_hashes_are(bench: ModuleType) -> None:
    first = bench.prompt_of(TraceRequest(0.0, 50, 1, (7, 8)), 0)
    second = bench.prompt_of(TraceRequest(0.0, 50, 1, (7, 8)), 1)
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]
    assert bench.prompt_of(TraceRequest(0.0, 20, 1, (8,)), 2)[:16] == first[16:32]


def test_figures_within_their_limits_and_not(bench: ModuleType) -> None:
    real = bench.Played(6000, 60.0, (0.4, 0.5, 0.9), (0.01, 0.02, 0.03), (1000, 400, 7), 50.0, 900)
    near = real._replace(output_tokens=6290, ttfts=(0.451,), tpots=(0.0191,))
    rows = bench.compare([near, near], [real, real])
    assert rows.keys() == {*bench.LIMITS, *bench.EQUAL}
    assert all(row["within"] for row in rows.values())
    assert rows["preemptions"]["measured"] == 14
    for name, change in (
        ("output_tokens_per_s", {"output_tokens": 5690}),
        ("ttft_p50_s", {"ttfts": (0.551,)}),
        ("tpot_p50_s", {"tpots": (0.0211,)}),
        ("prefix_hits", {"counts": (1000, 401, 7)}),
        ("preemptions", {"counts": (1000, 400, 6)}),
    ):
        rows = bench.compare([near._replace(**change)] * 2, [real, real])
        assert [key for key, row in rows.items() if not row["within"]] == [name]
    fewer, more = (real._replace(counts=(1000, 400, n)) for n in (6, 8))
    rows = bench.compare([fewer, more], [real, real])  # as many in all, but not in each
    assert not rows["preemptions"]["within"]


@pytest.mark.parametrize("name", ["rag", "burst"])
async def test_what_is_counted_of_a_run_is_what_the_planner_says(
    bench: ModuleType, name: str
) -> None:
    """Times are another matter: here nothing is computed."""
    workload = bench.WORKLOADS[name](20, 1.0, 0)
    requests = [request._replace(arrival=0.0) for request in workload.requests]
    changes = {"admission_headroom": 0} if name == "burst" else {}
    stack = Scripted(150 if name == "burst" else 1000, **changes)
    timer = StepTimer(stack.service, stack.engine, 16)
    stack.service.start()
    try:
        for _ in range(2):  # the second time nothing is left of the first
            measured, steps = await bench.play(stack, stack.service, timer, requests)
            planned = bench.predict(requests, stack, model())
            assert measured.counts == planned.counts
            assert measured.steps == planned.steps == len(steps)
            assert 0 < max(measured.ttfts) <= measured.duration_s
            assert measured.busy_s < measured.duration_s
    finally:
        await stack.service.stop()
    _, hits, preemptions = measured.counts
    assert (preemptions > 3) == (name == "burst")
    assert (hits > 1000) == (name == "rag")
    errors = bench.step_errors([steps], model())
    assert sum(one["steps"] for one in errors.values()) == len(steps)


def test_a_report_says_what_missed(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    workload = bench.burst(20, 1.0, 0)
    stack = Scripted(150, admission_headroom=0)
    stack.engine.close()
    told = CalibratedModel(
        coefficients=(0.001,) * NUM_FEATURES, measured={"num_steps": 9, "residuals": {}}
    )
    planned = bench.predict(workload.requests, stack, told)
    run = bench.Run(workload, stack, planned, [], 0.01)
    good = bench.report([run, run], told)
    bench.show(good)
    shown = capsys.readouterr().out
    assert good["within"]
    assert "all within their limits" in shown
    assert "MISSED" not in shown
    other = run._replace(workload=workload._replace(name="other"))
    slow = planned._replace(tpots=tuple(2 * tpot for tpot in planned.tpots))
    bad = bench.report([run, other._replace(measured=slow)], told)
    bench.show(bad)
    shown = capsys.readouterr().out
    assert not bad["within"]
    assert [one["within"] for one in bad["workloads"]] == [True, False]
    assert shown.count("MISSED") == 1
    assert "-50.0%" in shown


async def test_a_pass_that_is_disturbed_is_done_again(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.3, 0.2, 0.01, 0.3, 0.1, 0.2])
    monkeypatch.setattr(bench, "Others", lambda: SimpleNamespace(share=lambda: next(shares)))
    played = bench.Played(1, 1.0, (0.1,), (0.1,), (0, 0, 0), 1.0, 1)

    async def play(*_: Any) -> Any:
        return played, []

    monkeypatch.setattr(bench, "play", play)
    runs = bench.Bench(SimpleNamespace())
    workload = bench.burst(5, 1.0, 0)
    runs._engines[bench._key(workload.settings)] = bench.Started(None, None, None)
    assert (await runs._measure(workload)).others == 0.01
    assert (await runs._measure(workload)).others == 0.1  # the best of the tries


def test_others_are_not_this_process(bench: ModuleType) -> None:
    machine = sys.modules["machine"]
    others = machine.Others()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert 0 <= others.share() <= 1
    total, busy, own = machine._used()
    assert total >= busy >= 0
    assert own > 0.3
