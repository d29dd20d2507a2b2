"""What the planner says of this machine, against what happens on it.

    python benchmarks/plan_vs_real.py [chat] [rag] [burst] [--calibration FILE] [--json]

Each workload is served by the real engine, on the thread that a server has it on, with requests
that come at their times by the wall clock. Then the planner replays the same requests at the same
times on a virtual clock, with a cost model calibrated on this machine. It never sees what was
measured of a workload. Time to the first token counts from when a request was sent, which is a
millisecond or two after it was due: so much later does the event loop of this script wake up.

`chat`: lengths like ShareGPT's (prompts of 161 tokens on average, answers shortened), requests at
random times, below saturation, half of them with one system prompt. `rag`: questions about three
documents at random times, prompts in chunks beside the decoding of others; most find their document
in the cache, so that the median is of these, and not at the edge to the first ones. Nor are answers
so short that half of them meet nobody else's prompt: their median would lie at the edge between two
kinds, where a machine whose speed wanders by 7% moves it by 8, always up. `burst`: requests that
all come in one instant to a pool for a few of them, so that some are preempted. When there are
preemptions depends on when requests come, to the step; in one instant they all come before the
first step, so that their number follows from the decisions alone.

Speed of a machine with neighbours changes by the second. So all is done in passes, each with other
requests from an empty cache, and parts of the calibration are between them; figures are of all
passes together, but what is counted must be equal in each. What was disturbed is done once more: a
load of the calibration, or a pass, while other programs took more than a few percent of the
processors, by the system's own count (Linux alone tells). With `--calibration` the calibration is
that of a file. Exit status 1: something is not within its limit.
"""

import argparse
import asyncio
import json
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from machine import Others, facts

from looseleaf.engine.build import Stack, build
from looseleaf.engine.engine import Engine
from looseleaf.engine.service import EngineService
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrate import calibrate
from looseleaf.planner.calibrated import CalibratedModel, load_calibration
from looseleaf.planner.loads import Load, loads, take_all, time_loads
from looseleaf.planner.plan import run_plan
from looseleaf.planner.step_timer import StepTimer, TimedStep, summaries
from looseleaf.planner.summary_times import SummaryTimes
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.planner.workload import poisson

HASHED_TOKENS = 16
LIMITS = {"output_tokens_per_s": 0.05, "ttft_p50_s": 0.10, "tpot_p50_s": 0.05}
EQUAL = ("prefix_queries", "prefix_hits", "preemptions")
WARM_UP = tuple(TraceRequest(0.0, 150, 32) for _ in range(8))
DISTURBED = 0.04
"""Of all processors' time: from here on, what was measured is not the engine alone."""

MOST_TRIES = 3
"""Of a pass that is disturbed."""


class Workload(NamedTuple):
    """`settings` are the engine's, `requests` have times."""

    name: str
    about: str
    requests: tuple[TraceRequest, ...]
    settings: dict[str, Any]


class Played(NamedTuple):
    """One pass over a workload, real or planned. Times are seconds; `counts` are those of `EQUAL`,
    `ttfts` and `tpots` those of the requests, `busy_s` is what the steps took of `duration_s`."""

    output_tokens: int
    duration_s: float
    ttfts: tuple[float, ...]
    tpots: tuple[float, ...]
    counts: tuple[int, ...]
    busy_s: float
    steps: int

    def figures(self) -> dict[str, float]:
        """Those that have limits, and all counts."""
        return {
            "output_tokens_per_s": self.output_tokens / self.duration_s,
            "ttft_p50_s": median(self.ttfts),
            "tpot_p50_s": median(self.tpots),
            **dict(zip(EQUAL, self.counts, strict=True)),
        }


def together(passes: Sequence[Played]) -> Played:
    """All of them as one."""
    return Played(
        sum(one.output_tokens for one in passes),
        sum(one.duration_s for one in passes),
        tuple(t for one in passes for t in one.ttfts),
        tuple(t for one in passes for t in one.tpots),
        tuple(map(sum, zip(*(one.counts for one in passes), strict=True))),
        sum(one.busy_s for one in passes),
        sum(one.steps for one in passes),
    )


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
    blocks = 50
    requests = []
    for _ in range(max(2, round(rate * seconds))):
        document = rng.randrange(3)
        hash_ids = tuple(range(1000 * document, 1000 * document + blocks))
        prompt = blocks * HASHED_TOKENS + rng.randint(20, 60)
        requests.append(TraceRequest(None, prompt, rng.randint(64, 128), hash_ids))
    about = f"{rate:g} questions a second about 3 documents of {blocks * HASHED_TOKENS} tokens"
    return Workload("rag", about, tuple(poisson(requests, rate, seed)), {})


def burst(seconds: float, scale: float, seed: int) -> Workload:
    rng = random.Random(seed)
    count = max(2, round(scale * seconds))
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
) -> tuple[Played, list[TimedStep]]:
    """Serve requests at their times, from an empty cache on; those of one instant are there before
    the next step."""
    await service.call(Engine.forget_cache)
    counters = stack.engine.scheduler.counters
    before = [getattr(counters, name) for name in EQUAL]
    prompts = [prompt_of(request, i) for i, request in enumerate(requests)]
    first_step = len(timer.steps)
    timer.load = 0
    gate = threading.Event()
    held = asyncio.ensure_future(service.call(lambda _: gate.wait(10)))
    await asyncio.sleep(0.05)
    start = service.clock()

    async def ask(request: TraceRequest, prompt: list[int]) -> tuple[float, list[float]]:
        sent = start
        if request.arrival:
            await asyncio.sleep(start + request.arrival - service.clock())
            sent = service.clock()
        return sent, await take_all(service, prompt, request.num_output_tokens)

    tasks = [
        asyncio.create_task(ask(request, prompt))
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    await asyncio.sleep(0)  # whoever is due has asked when this comes back
    gate.set()
    await held
    answers = await asyncio.gather(*tasks)
    await service.call(lambda _: None)  # until the last step has been noted
    timer.load = None
    counts = [getattr(counters, name) - b for name, b in zip(EQUAL, before, strict=True)]
    steps = timer.steps[first_step:]
    return played(requests, answers, counts, steps), steps


def played(
    requests: Sequence[TraceRequest],
    answers: Sequence[tuple[float, Sequence[float]]],
    counts: Sequence[int],
    steps: Sequence[TimedStep],
) -> Played:
    """Of answers: when each was sent, and the times at which tokens came."""
    return Played(
        sum(request.num_output_tokens for request in requests),
        max(times[-1] for _, times in answers) - min(sent for sent, _ in answers),
        tuple(times[0] - sent for sent, times in answers),
        tuple(
            (times[-1] - times[0]) / (request.num_output_tokens - 1)
            for request, (_, times) in zip(requests, answers, strict=True)
        ),
        tuple(counts),
        sum(step.seconds for step in steps),
        len(steps),
    )


def predict(requests: Sequence[TraceRequest], stack: Stack, model: CalibratedModel) -> Played:
    """What the planner says of the same requests on an engine like this one."""
    trace = Trace(tuple(requests), (), True, HASHED_TOKENS)
    times = SummaryTimes(model, rows_that_draw=True)
    plan = run_plan(trace, stack.settings, stack.memory, times)
    summary, outcomes = plan.summary, plan.result.outcomes
    firsts = [(o, o.first_token) for o in outcomes if o.first_token is not None]
    return Played(
        summary.output_tokens,
        summary.duration,
        tuple(first - o.arrival for o, first in firsts),
        tuple((o.finished - first) / (o.num_output_tokens - 1) for o, first in firsts),
        tuple(getattr(summary, name) for name in EQUAL),
        summary.busy,
        summary.steps,
    )


def compare(predicted: Sequence[Played], measured: Sequence[Played]) -> dict[str, dict[str, Any]]:
    """Of each figure of these passes: both values, the error, and whether it is within the limit.
    Counts are sums, and within if they are equal in each pass."""
    ours, real = together(predicted).figures(), together(measured).figures()
    found: dict[str, dict[str, Any]] = {}
    for name, limit in LIMITS.items():
        error = ours[name] / real[name] - 1
        found[name] = _row(ours[name], real[name], error, abs(error) <= limit)
    for place, name in enumerate(EQUAL):
        equal = [p.counts[place] for p in predicted] == [m.counts[place] for m in measured]
        found[name] = _row(ours[name], real[name], ours[name] - real[name], equal)
    return found


def _row(predicted: float, measured: float, error: float, within: bool) -> dict[str, Any]:
    return {"predicted": predicted, "measured": measured, "error": error, "within": within}


def step_errors(
    passes: Sequence[Sequence[TimedStep]], model: CalibratedModel
) -> dict[str, dict[str, Any]]:
    """How far off the model is for the steps that were really taken, by kind: not what it was
    fitted to."""
    found = {}
    for kind in ("prefill", "mixed", "decode"):
        pairs = [
            (model.seconds_of(summary), step.seconds)
            for steps in passes
            for step, summary in zip(steps, summaries(steps, model.cooling), strict=True)
            if step.kind == kind
        ]
        if pairs:
            found[kind] = {
                "steps": len(pairs),
                "median": median(ours / real - 1 for ours, real in pairs),
                "total": sum(p for p, _ in pairs) / sum(s for _, s in pairs) - 1,
            }
    return found


class Started(NamedTuple):
    """An engine that waits for requests."""

    stack: Stack
    service: EngineService
    timer: StepTimer

    @property
    def room(self) -> tuple[int, int, int]:
        """Seats, the longest sequence, and tokens in all."""
        memory = self.stack.memory
        return self.stack.settings.max_num_seqs, memory.max_model_len, memory.num_tokens


class Run(NamedTuple):
    """A pass that was served, and the share that other programs took of the processors."""

    workload: Workload
    stack: Stack
    measured: Played
    steps: list[TimedStep]
    others: float


class Bench:
    """One run: an engine to calibrate on, and one for each workload."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._engines: dict[frozenset[tuple[str, Any]], Started] = {}
        self._steps: list[TimedStep] = []
        self._num_loads = 0
        self._again: list[Load] = []

    async def run(self) -> dict[str, Any]:
        options = self._options
        model = None if options.calibration is None else load_calibration(options.calibration)
        workloads = [
            WORKLOADS[name](options.seconds, options.scale, number)
            for number in range(options.passes)
            for name in options.workloads or WORKLOADS
        ]
        settings = EngineSettings(model=options.model, threads=options.threads)
        runs = []
        try:
            for changes in ({}, *(workload.settings for workload in workloads)):
                if _key(changes) not in self._engines:
                    self._engines[_key(changes)] = await start_engine(settings, changes)
            for number, workload in enumerate(workloads):
                if model is None:
                    await self._calibrate(number, len(workloads) + 1)
                runs.append(await self._measure(workload))
            if model is None:
                await self._calibrate(len(workloads), len(workloads) + 1)
                besides = [t for one in self._engines.values() for t in one.timer.besides]
                model = calibrate(self._steps, facts()["processor"], besides)
        finally:
            for started in self._engines.values():
                await started.service.stop()
        if options.save_calibration is not None:
            model.save(options.save_calibration)
        return report(runs, model)

    async def _calibrate(self, number: int, parts: int) -> None:
        """One of so many parts of the calibration; each has loads of every kind. The engines take
        turns: they lie in different places of the memory. What is too large for one is done on the
        first."""
        first, *_ = engines = list(self._engines.values())
        plan = [load for seed in range(self._options.rounds) for load in loads(*first.room, seed)]
        random.Random(0).shuffle(plan)
        fresh, again = plan[number::parts], self._again
        self._again = []
        note(f"calibration, part {number + 1} of {parts}: {len(fresh) + len(again)} loads")
        chosen = engines[number % len(engines)]
        may_repeat = number < parts - 1
        for part, twice in ((fresh, may_repeat), (again, False)):  # twice is enough
            here = [load for load in part if load.fits(*chosen.room)]
            await self._time(chosen, here, twice)
            await self._time(first, [load for load in part if load not in here], twice)

    async def _time(self, started: Started, part: Sequence[Load], may_repeat: bool) -> None:
        if not part:
            return
        stack, service, timer = started
        others, shares = Others(), list[float]()
        first = self._num_loads + 1
        steps = await time_loads(
            service,
            timer,
            stack.tokenizer.vocab_size,
            part,
            on_load=lambda: shares.append(others.share()),
            first_number=first,
            seed=first,
        )
        good = [share <= DISTURBED or not may_repeat for share in shares]
        self._steps += [step for step in steps if good[step.load - first]]
        self._again += [load for load, is_good in zip(part, good, strict=True) if not is_good]
        self._num_loads += len(part)

    async def _measure(self, workload: Workload) -> Run:
        stack, service, timer = self._engines[_key(workload.settings)]
        runs: list[Run] = []
        while len(runs) < MOST_TRIES:
            note(f"{workload.name}: {len(workload.requests)} requests")
            others = Others()
            measured, steps = await play(stack, service, timer, workload.requests)
            runs.append(Run(workload, stack, measured, steps, others.share()))
            if runs[-1].others <= DISTURBED:
                break
        return min(runs, key=lambda run: run.others)


def _key(changes: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(changes.items())


async def start_engine(settings: EngineSettings, changes: dict[str, Any]) -> Started:
    """Some requests have run on it: the first time is not like the others."""
    stack = build(replace(settings, **({"kv_cache_memory": "1GiB"} | changes)))
    service = EngineService(stack.engine, stack.tokenizer)
    timer = StepTimer(service, stack.engine, stack.memory.block_size)
    service.start()
    await play(stack, service, timer, WARM_UP)
    return Started(stack, service, timer)


def report(runs: Sequence[Run], model: CalibratedModel) -> dict[str, Any]:
    found = [
        report_one([run for run in runs if run.workload.name == name], model)
        for name in dict.fromkeys(run.workload.name for run in runs)
    ]
    return {
        "workloads": found,
        "within": all(one["within"] for one in found),
        "cost_model": {"name": model.name, **model.measured},
        "machine": facts(),
    }


def report_one(runs: Sequence[Run], model: CalibratedModel) -> dict[str, Any]:
    """Of the passes over one workload."""
    planned = [predict(run.workload.requests, run.stack, model) for run in runs]
    rows = compare(planned, [run.measured for run in runs])
    ours, real = together(planned), together([run.measured for run in runs])
    return {
        "name": runs[0].workload.name,
        "about": runs[0].workload.about,
        "requests": sum(len(run.workload.requests) for run in runs),
        "passes": len(runs),
        "figures": rows,
        "within": all(row["within"] for row in rows.values()),
        "duration_s": [ours.duration_s, real.duration_s],
        "busy_s": [ours.busy_s, real.busy_s],
        "steps": [ours.steps, real.steps],
        "step_errors": step_errors([run.steps for run in runs], model),
        "others": [run.others for run in runs],
        "busy_by_pass": [
            plan.busy_s / run.measured.busy_s - 1 for plan, run in zip(planned, runs, strict=True)
        ],
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
        print(
            f"\n{run['name']}: {run['requests']} requests in {run['passes']} passes. {run['about']}"
        )
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
        hits, asked = run["figures"]["prefix_hits"], run["figures"]["prefix_queries"]
        rates = [hits[key] / (asked[key] or 1) for key in ("predicted", "measured")]
        print(f"{'hit rate':24}{rates[0]:>11.2%}{rates[1]:>11.2%}")
        for title, key in (("busy, s", "busy_s"), ("steps", "steps")):
            ours, real = run[key]
            print(f"{title:24}{ours:>11.4g}{real:>11.4g}{ours / real - 1:>+9.1%}")
        errors = ", ".join(
            f"{kind} {one['median']:+.1%} in the middle and {one['total']:+.1%} in all"
            for kind, one in run["step_errors"].items()
        )
        print(f"the model for its real steps: {errors}")
        by_pass = ", ".join(f"{value:+.1%}" for value in run["busy_by_pass"])
        print(f"error of the time that steps took, by pass: {by_pass}")
        taken = ", ".join(f"{value:.1%}" for value in run["others"])
        print(f"other programs took, by pass: {taken} (disturbed from {DISTURBED:.0%} on)")
    print("\nall within their limits" if results["within"] else "\nNOT all within their limits")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], help="default: all")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="instead of calibrating")
    parser.add_argument("--rounds", type=int, default=3, help="of the calibration")
    parser.add_argument("--save-calibration", type=Path, metavar="FILE")
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30, help="of each pass, about")
    parser.add_argument("--scale", type=float, default=1.0, help="of the requests' rates")
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
