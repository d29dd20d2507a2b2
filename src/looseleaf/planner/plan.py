"""A trace, a model, a machine: what would happen."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrated import load_calibration
from looseleaf.planner.cost_model import CostModel, Roofline, check_overhead, roofline
from looseleaf.planner.fit import Fit
from looseleaf.planner.hardware import Hardware
from looseleaf.planner.kernel_profile import load_profile
from looseleaf.planner.planned_engine import MOST, UP_TO, planned_replay
from looseleaf.planner.prefix_warnings import short_prefixes
from looseleaf.planner.replay import Replay, Replayed
from looseleaf.planner.shape_work import ShapeCounter
from looseleaf.planner.step_times import ShapeTimes, StepTimes
from looseleaf.planner.summary import Summary, summarize
from looseleaf.planner.summary_times import SummaryTimes
from looseleaf.planner.trace import Trace
from looseleaf.planner.trace_types import TraceRequest
from looseleaf.planner.workload import arrivals, closed_loop, poisson
from looseleaf.tiers.tiers import TierFigures
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

SAMPLES = 200
"""How often a replay looks where the memory is."""

SHOWN = 20
"""Of requests that can never fit."""


MOST_BLOCKS = 2**24
"""That are kept for one replay, of all its replicas: some GiB of this machine's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How a trace is played: only its first `limit` requests, `speed` times as fast, or at random
    times, `rate` a second, drawn from `seed`; or in a closed loop, `concurrency` sessions at once.
    """

    rate: float | None = None
    speed: float = 1.0
    limit: int | None = None
    seed: int = 0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise ConfigError("requests come at a rate, or in a closed loop: leave one of them out")
        for name, value in (
            ("rate", self.rate),
            ("speed", self.speed),
            ("limit", self.limit),
            ("concurrency", self.concurrency),
        ):
            if value is not None and not 0 < value <= MOST:
                raise ConfigError(f"{name} is {_shown(value)}, but it must be above 0{UP_TO}")

    def of(self, trace: Trace) -> Trace:
        """Raises ConfigError for a trace without times, if they are not to be drawn."""
        if not trace.timed and self.rate is None and self.concurrency is None:
            raise ConfigError(
                "the trace says how long requests are, but not when they came: pass --rate, in "
                "requests a second, or --concurrency"
            )
        requests, users = tuple(islice(trace.requests, self.limit)), trace.users
        if self.rate is not None:
            requests, users = tuple(poisson(requests, self.rate, self.seed)), None
        elif self.concurrency is not None:
            requests, users = closed_loop(requests), self.concurrency
        if self.speed != 1:
            requests = tuple(_sooner(request, self.speed) for request in requests)
        return trace._replace(requests=requests, users=users)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]


def _sooner(request: TraceRequest, speed: float) -> TraceRequest:
    arrival = (request.arrival or 0.0) / speed
    return request._replace(arrival=arrival, delay=request.delay / speed)


class Timing(NamedTuple):
    """How long steps take, and what says so."""

    times: StepTimes
    model: CostModel


def roofline_timing(fitted: Fit, hardware: Hardware, **efficiencies: float) -> Timing:
    """`efficiencies` are settings of `Roofline`; those left out have its values."""
    counter = ShapeCounter(
        fitted.shape, fitted.weights_dtype, fitted.kv_dtype, fitted.settings.tensor_parallel_size
    )
    model: Roofline = roofline(hardware, counter.count, fitted.weights_dtype, **efficiencies)
    return Timing(ShapeTimes(counter, model), model)


def profile_timing(path: Path, fitted: Fit, *, step_overhead: float = 0.0) -> Timing:
    """From kernels that were measured one by one: see `load_profile`."""
    check_overhead(step_overhead)
    model = load_profile(path, fitted.shape.num_layers, step_overhead=step_overhead)
    return Timing(SummaryTimes(model, rows_that_draw=False), model)


def calibrated_timing(path: Path) -> Timing:
    """From steps that were timed, of the machine and model that they were timed with."""
    model = load_calibration(path)
    return Timing(SummaryTimes(model, rows_that_draw=True), model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`replicas` are the summaries of each where there are several, between which requests were
    routed by `routing`. `summary` and `result` are of all together then: `busy`, means and peaks
    are those of one replica."""

    settings: EngineSettings
    memory: MemoryPlan
    summary: Summary
    result: Replayed
    warnings: tuple[str, ...]
    replicas: tuple[Summary, ...] = ()
    routing: str | None = None
    tiers: TierFigures | None = None


def memory_plan(fitted: Fit, num_blocks: int | None = None) -> MemoryPlan:
    """The pool of what fits, or of `num_blocks`."""
    blocks = fitted.num_blocks if num_blocks is None else num_blocks
    check_num_blocks(blocks)
    size = fitted.settings.block_size
    length = (
        fitted.max_model_len if num_blocks is None else min(fitted.max_model_len, blocks * size)
    )
    return MemoryPlan(blocks, size, round(fitted.sizing.block_bytes), length)


def check_num_blocks(num_blocks: int) -> None:
    """Raises ConfigError for more than a replay can keep: each takes memory of this machine."""
    if num_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"the KV cache has {str(num_blocks)[:40]} blocks, all replicas together, but at most "
            f"{MOST_BLOCKS} can be planned: ask for fewer, for larger ones, or for fewer replicas"
        )


def run_plan(
    trace: Trace,
    settings: EngineSettings,
    memory: MemoryPlan,
    times: StepTimes,
    *,
    swap_bandwidth: float | None = None,
    disk_speed: DiskSpeed = ASSUMED,
    on_progress: Callable[[int], None] | None = None,
    on_replay: Callable[[Replay], None] | None = None,
) -> Plan:
    """Replay requests, which must have times, on an engine of these settings. Blocks go to the
    host's memory and come back at `swap_bandwidth`, in bytes a second. `on_replay` gets the replay
    before it begins, to watch it."""
    replay = planned_replay(
        settings,
        memory,
        times,
        swap_bandwidth=swap_bandwidth,
        disk_speed=disk_speed,
        sample_seconds=sample_seconds(trace, settings, times),
        on_progress=on_progress,
    )
    if on_replay is not None:
        on_replay(replay)
    result = replay.run(
        arrivals(trace.requests, hashed_tokens=trace.hashed_tokens, users=trace.users)
    )
    summary = summarize(
        result,
        replay.engine.scheduler.counters,
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        prefix_caching=settings.enable_prefix_caching,
    )
    return Plan(
        settings=settings,
        memory=memory,
        summary=summary,
        result=result,
        warnings=tuple(warnings_of(trace, summary, result)),
        tiers=None if replay.engine.tiers is None else replay.engine.tiers.figures(),
    )


def sample_seconds(trace: Trace, settings: EngineSettings, times: StepTimes) -> float:
    """How often a replay of it looks where the memory is."""
    return max(_expected_span(trace, settings, times), 1.0) / SAMPLES


def _expected_span(trace: Trace, settings: EngineSettings, times: StepTimes) -> float:
    """About how many seconds of traffic there are."""
    if trace.users is None:
        return max((r.arrival or 0.0 for r in trace.requests), default=0.0)
    seats = min(trace.users, settings.max_num_seqs)
    stored = sum(r.num_prompt_tokens for r in trace.requests) // max(1, len(trace.requests))
    step = next(times.decoding([stored] * seats))
    return step * sum(r.num_output_tokens for r in trace.requests) / seats


def warnings_of(trace: Trace, summary: Summary, result: Replayed) -> list[str]:
    """What is worth a second look before it is deployed."""
    found = []
    if summary.refused:
        found.append(
            f"{summary.refused} requests can never fit, the first at "
            f"{result.refused[0].arrival:.1f} s: {result.refused[0].reason}"
        )
    if trace.bad_rows:
        found.append(f"{len(trace.bad_rows)} rows of the trace could not be used")
    if summary.prefix_caching and not any(request.hash_ids for request in trace.requests):
        found.append("the trace does not say what prompts share: its hit rate means nothing")
    found += short_prefixes(trace, summary)
    if summary.requests and summary.preemptions > summary.requests / 10:
        found.append(
            f"{summary.preemptions} preemptions of {summary.requests} requests: give the KV cache "
            f"more memory, admit fewer (max_num_seqs), or raise admission_headroom"
        )
    last = max((outcome.arrival for outcome in result.outcomes), default=0.0)
    if summary.duration > 1.1 * last and summary.waiting_peak > 10:
        found.append(
            f"it cannot keep up: the last request came after {last:.0f} s and the last answer "
            f"ended after {summary.duration:.0f} s, with up to {summary.waiting_peak} waiting; "
            "more memory, replicas or a smaller rate would help"
        )
    return found
