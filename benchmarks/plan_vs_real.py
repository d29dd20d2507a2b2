"""What the planner says of this machine, against what happens on it.

    python benchmarks/plan_vs_real.py [chat] [rag] [burst] [--calibration FILE] [--json]

Each workload is served by the real engine, on the thread that a server has it on, with requests
that come at their times by the wall clock. Then the planner replays the same requests at the same
times on a virtual clock, with a cost model calibrated on this machine. It never sees what was
measured of a workload.

`chat`: lengths like ShareGPT's (prompts of 161 tokens on average, answers shortened), requests at
random times, below saturation, half of them with one system prompt. `rag`: questions about four
documents at random times, prompts in chunks beside the decoding of others. `burst`: requests that
all come in one instant to a pool for a few of them, so that some are preempted. When there are
preemptions depends on when requests come, to the step; in one instant they all come before the
first step, so that their number follows from the decisions alone.

The calibration is interleaved with the workloads, round by round, for the machine may change
meanwhile; with `--calibration` it is that of a file. A probe, the same few requests before and
after each workload, tells how far the machine is from its calibration. Exit status 1: something is
not within its limit.
"""

import argparse
import asyncio
import json
import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from machine import facts

from looseleaf.engine.build import Stack, build
from looseleaf.engine.engine import Engine
from looseleaf.engine.service import EngineService
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrate import calibrate
from looseleaf.planner.calibrated import CalibratedModel, load_calibration
from looseleaf.planner.loads import loads, take_all, time_loads
from looseleaf.planner.plan import run_plan
from looseleaf.planner.step_timer import StepTimer, TimedStep
from looseleaf.planner.summary_times import SummaryTimes
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.planner.workload import poisson

HASHED_TOKENS = 16
LIMITS = {"output_tokens_per_s": 0.05, "ttft_p50_s": 0.10, "tpot_p50_s": 0.05}
EQUAL = ("prefix_queries", "prefix_hits", "preemptions")
PROBE = tuple(TraceRequest(0.0, 150, 32) for _ in range(8))


class Workload(NamedTuple):
    """`settings` are the engine's, `requests` have times."""

    name: str
    about: str
    requests: tuple[TraceRequest, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Figures:
    """Of one run, real or planned. Times are seconds."""

    output_tokens_per_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    duration_s: float
    busy_s: float
    steps: int

    @property
    def hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


def chat(seconds: float, scale: float, seed: int) -> Workload:
    rng = random.Random(seed)
    rate = 0.8 * scale
    system = tuple(range(8))
    requests = []
    for _ in range(max(2, round(rate * seconds))):
        prompt = min(1024, max(4, round(rng.lognormvariate(4.5, 1.05))))
        output = min(256, max(4, round(rng.lognormvariate(4.6, 0.8))))
        shared = system if rng.random() < 0.5 else ()
        requests.append(TraceRequest(None, prompt + HASHED_TOKENS * len(shared), output, shared))
    about = f"{rate:g} requests a second at random times, lengths like ShareGPT's"
    return Workload("chat", about, tuple(poisson(requests, rate, seed)), {})


def rag(seconds: float, scale: float, seed: int) -> Workload:
    rng = random.Random(seed)
    rate = 1.0 * scale
    blocks = 75
    requests = []
    for _ in range(max(2, round(rate * seconds))):
        document = rng.randrange(4)
        hash_ids = tuple(range(1000 * document, 1000 * document + blocks))
        prompt = blocks * HASHED_TOKENS + rng.randint(20, 60)
        requests.append(TraceRequest(None, prompt, rng.randint(24, 72), hash_ids))
    about = f"{rate:g} questions a second about 4 documents of {blocks * HASHED_TOKENS} tokens"
    return Workload("rag", about, tuple(poisson(requests, rate, seed)), {})


def burst(seconds: float, scale: float, seed: int) -> Workload:
    rng = random.Random(seed)
    count = max(2, round(0.6 * scale * seconds))
    requests = tuple(
        TraceRequest(0.0, rng.randint(64, 256), rng.randint(64, 256)) for _ in range(count)
    )
    about = f"{count} requests at once on a KV cache of 3,072 tokens, admitted without reserve"
    settings = {"kv_cache_memory": "72MiB", "max_model_len": 1024, "admission_headroom": 0}
    return Workload("burst", about, requests, settings)


WORKLOADS: dict[str, Callable[[float, float, int], Workload]] = {
    "chat": chat,
    "rag": rag,
    "burst": burst,
}


def prompt_of(request: TraceRequest, index: int) -> list[int]:
    """Random tokens, equal to another prompt's where the hashes are."""
    seeds = [f"block {hash_id}" for hash_id in request.hash_ids]
    tokens = [token for seed in seeds for token in _tokens(seed, HASHED_TOKENS)]
    own = request.num_prompt_tokens - len(tokens)
    return tokens + _tokens(f"request {index}", own)


def _tokens(seed: str, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000, 40_000) for _ in range(count)]


async def play(
    stack: Stack, service: EngineService, timer: StepTimer, requests: Sequence[TraceRequest]
) -> tuple[Figures, list[TimedStep]]:
    """Serve requests at their times, from an empty cache on; those of one instant are there before
    the next step."""
    await service.call(Engine.forget_cache)
    counters = stack.engine.scheduler.counters
    before = (counters.prefix_queries, counters.prefix_hits, counters.preemptions)
    prompts = [prompt_of(request, i) for i, request in enumerate(requests)]
    first_step = len(timer.steps)
    timer.load = 0
    gate = threading.Event()
    held = asyncio.ensure_future(service.call(lambda _: gate.wait(10)))
    await asyncio.sleep(0.05)
    start = service.clock()

    async def ask(request: TraceRequest, prompt: list[int]) -> tuple[float, list[float]]:
        due = start + (request.arrival or 0.0)
        if due > start:
            await asyncio.sleep(due - service.clock())
        return due, await take_all(service, prompt, request.num_output_tokens)

    tasks = [
        asyncio.create_task(ask(request, prompt))
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    await asyncio.sleep(0)  # whoever is due has asked when this comes back
    gate.set()
    await held
    answers = await asyncio.gather(*tasks)
    timer.load = None
    after = (counters.prefix_queries, counters.prefix_hits, counters.preemptions)
    counts = [b - a for a, b in zip(before, after, strict=True)]
    steps = timer.steps[first_step:]
    return figures(requests, answers, counts, steps), steps


def figures(
    requests: Sequence[TraceRequest],
    answers: Sequence[tuple[float, Sequence[float]]],
    counts: Sequence[int],
    steps: Sequence[TimedStep],
) -> Figures:
    """Of answers: when each was due, and the times at which tokens came."""
    duration = max(times[-1] for _, times in answers) - min(due for due, _ in answers)
    tpots = [
        (times[-1] - times[0]) / (request.num_output_tokens - 1)
        for request, (_, times) in zip(requests, answers, strict=True)
        if request.num_output_tokens > 1
    ]
    return Figures(
        sum(request.num_output_tokens for request in requests) / duration,
        median(times[0] - due for due, times in answers),
        median(tpots),
        *counts,
        duration_s=duration,
        busy_s=sum(step.seconds for step in steps),
        steps=len(steps),
    )


def predict(requests: Sequence[TraceRequest], stack: Stack, model: CalibratedModel) -> Figures:
    """What the planner says of the same requests on an engine like this one."""
    trace = Trace(tuple(requests), (), True, HASHED_TOKENS)
    times = SummaryTimes(model, rows_that_draw=True)
    plan = run_plan(trace, stack.settings, stack.memory, times)
    summary = plan.summary
    assert summary.ttft is not None
    assert summary.tpot is not None
    return Figures(
        summary.output_tokens_per_second,
        summary.ttft.p50,
        summary.tpot.p50,
        summary.prefix_queries,
        summary.prefix_hits,
        summary.preemptions,
        summary.duration,
        summary.busy,
        summary.steps,
    )


def compare(predicted: Figures, measured: Figures) -> dict[str, dict[str, Any]]:
    """Of each figure with a limit: both values, the error, and whether it is within the limit."""
    found: dict[str, dict[str, Any]] = {}
    for name, limit in LIMITS.items():
        ours, real = getattr(predicted, name), getattr(measured, name)
        error = ours / real - 1
        found[name] = _row(ours, real, error, abs(error) <= limit)
    for name in EQUAL:
        ours, real = getattr(predicted, name), getattr(measured, name)
        found[name] = _row(ours, real, ours - real, ours == real)
    return found


def _row(predicted: float, measured: float, error: float, within: bool) -> dict[str, Any]:
    return {"predicted": predicted, "measured": measured, "error": error, "within": within}


def step_errors(steps: Sequence[TimedStep], model: CalibratedModel) -> dict[str, Any]:
    """How far off the model is for the steps that were really taken, by kind: not what it was
    fitted to."""
    found = {}
    for kind in ("prefill", "mixed", "decode"):
        pairs = [(model.seconds_of(s.summary), s.seconds) for s in steps if s.kind == kind]
        if pairs:
            found[kind] = {
                "steps": len(pairs),
                "median": median(ours / real - 1 for ours, real in pairs),
                "spread": _quantile([abs(ours / real - 1) for ours, real in pairs], 0.9),
                "total": sum(p for p, _ in pairs) / sum(s for _, s in pairs) - 1,
            }
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Bench:
    """One run: an engine to calibrate on, and one for each workload."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._steps: list[TimedStep] = []
        self._num_loads = 0
        self._round = 0

    async def run(self) -> dict[str, Any]:
        options = self._options
        model = None if options.calibration is None else load_calibration(options.calibration)
        settings = EngineSettings(model=options.model, threads=options.threads)
        chosen = [
            WORKLOADS[name](options.seconds, options.scale, options.seed)
            for name in options.workloads or WORKLOADS
        ]
        runs = []
        for workload in chosen:
            await self._calibrate(settings)
            runs.append(await self._measure(workload, settings))
        await self._calibrate(settings)
        if model is None:
            model = calibrate(self._steps, facts()["processor"])
        if options.save_calibration is not None:
            model.save(options.save_calibration)
        return report(runs, model)

    async def _calibrate(self, settings: EngineSettings) -> None:
        if self._options.calibration is not None:
            return
        stack, service, timer = start_engine(settings, {})
        try:
            memory = stack.memory
            plan = loads(
                stack.settings.max_num_seqs, memory.max_model_len, memory.num_tokens, self._round
            )
            note(f"calibration, round {self._round + 1}: {len(plan)} loads")
            self._steps += await time_loads(
                service,
                timer,
                stack.tokenizer.vocab_size,
                plan,
                first_number=self._num_loads + 1,
                seed=self._round,
            )
        finally:
            await service.stop()
        self._num_loads += len(plan)
        self._round += 1

    async def _measure(self, workload: Workload, settings: EngineSettings) -> "Run":
        stack, service, timer = start_engine(settings, workload.settings)
        try:
            await play(stack, service, timer, PROBE)  # the first is not like the others
            before, _ = await play(stack, service, timer, PROBE)
            note(f"{workload.name}: {len(workload.requests)} requests")
            measured, steps = await play(stack, service, timer, workload.requests)
            after, _ = await play(stack, service, timer, PROBE)
        finally:
            await service.stop()
        return Run(workload, stack, measured, steps, (before, after))


class Run(NamedTuple):
    """A workload that was served."""

    workload: Workload
    stack: Stack
    measured: Figures
    steps: list[TimedStep]
    probes: tuple[Figures, Figures]


def start_engine(
    settings: EngineSettings, changes: dict[str, Any]
) -> tuple[Stack, EngineService, StepTimer]:
    """In an event loop."""
    stack = build(replace(settings, **({"kv_cache_memory": "1GiB"} | changes)))
    service = EngineService(stack.engine, stack.tokenizer)
    timer = StepTimer(service, stack.engine, stack.memory.block_size)
    service.start()
    return stack, service, timer


def report(runs: Sequence[Run], model: CalibratedModel) -> dict[str, Any]:
    found = []
    for run in runs:
        predicted = predict(run.workload.requests, run.stack, model)
        probe = predict(PROBE, run.stack, model).duration_s
        rows = compare(predicted, run.measured)
        found.append(
            {
                "name": run.workload.name,
                "about": run.workload.about,
                "requests": len(run.workload.requests),
                "figures": rows,
                "hit_rate": {"predicted": predicted.hit_rate, "measured": run.measured.hit_rate},
                "within": all(row["within"] for row in rows.values()),
                "duration_s": [predicted.duration_s, run.measured.duration_s],
                "busy_s": [predicted.busy_s, run.measured.busy_s],
                "steps": [predicted.steps, run.measured.steps],
                "step_errors": step_errors(run.steps, model),
                "probes": [one.duration_s / probe - 1 for one in run.probes],
            }
        )
    return {
        "workloads": found,
        "within": all(one["within"] for one in found),
        "cost_model": {"name": model.name, **model.measured},
        "machine": facts(),
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(results: dict[str, Any]) -> None:
    model = results["cost_model"]
    print(f"{model['name']}: {model['num_steps']} steps; of loads left out of the fit")
    for kind, one in model["residuals"].items():
        print(
            f"  {kind:8} {one['num_steps']:5} steps  error {one['median']:6.1%} in the middle, "
            f"{one['p95']:6.1%} in 19 of 20, {one['total']:+6.1%} all together"
        )
    titles = {
        "output_tokens_per_s": ("throughput, tokens/s", "{:.1f}"),
        "ttft_p50_s": ("first token, p50, s", "{:.3f}"),
        "tpot_p50_s": ("per token, p50, ms", "{:.2f}"),
        "prefix_queries": ("prompt tokens asked", "{:.0f}"),
        "prefix_hits": ("of these found", "{:.0f}"),
        "preemptions": ("preemptions", "{:.0f}"),
    }
    for run in results["workloads"]:
        print(f"\n{run['name']}: {run['requests']} requests. {run['about']}")
        print(f"{'':24}{'predicted':>11}{'measured':>11}{'error':>9}   limit")
        for name, row in run["figures"].items():
            title, form = titles[name]
            factor = 1000 if name == "tpot_p50_s" else 1
            ours, real = (form.format(factor * row[key]) for key in ("predicted", "measured"))
            limit = LIMITS.get(name)
            error = f"{row['error']:+.1%}" if limit else f"{row['error']:+d}"
            told = f"{limit:.0%}" if limit else "equal"
            missed = "" if row["within"] else "   MISSED"
            print(f"{title:24}{ours:>11}{real:>11}{error:>9}   {told}{missed}")
        rates = run["hit_rate"]
        print(f"{'hit rate':24}{rates['predicted']:>11.2%}{rates['measured']:>11.2%}")
        for title, key in (("busy, s", "busy_s"), ("steps", "steps")):
            ours, real = run[key]
            print(f"{title:24}{ours:>11.4g}{real:>11.4g}{ours / real - 1:>+9.1%}")
        errors = ", ".join(
            f"{kind} {one['median']:+.1%} in the middle and {one['total']:+.1%} in all"
            for kind, one in run["step_errors"].items()
        )
        print(f"the model for its real steps: {errors}")
        before, after = run["probes"]
        print(f"the probe took {before:+.1%} before and {after:+.1%} after, against the model")
    print("\nall within their limits" if results["within"] else "\nNOT all within their limits")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], help="default: all")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="instead of calibrating")
    parser.add_argument("--save-calibration", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=60, help="of each workload, about")
    parser.add_argument("--scale", type=float, default=1.0, help="of the requests' rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object and no tables")
    options = parser.parse_args()
    results = asyncio.run(Bench(options).run())
    if options.json:
        print(json.dumps(results))
    else:
        show(results)
    raise SystemExit(0 if results["within"] else 1)


if __name__ == "__main__":
    main()
