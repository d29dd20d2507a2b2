"""Runs of one system on one machine: with as much work as it can take, and at some rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from looseleaf.core.step import Step
from looseleaf.engine.usage import Usage, usage
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.paper.beams import RecordedBeamsExecutor, Searches
from looseleaf.planner.paper.setups import (
    BLOCK_SIZE,
    NO_OVERHEAD,
    Overhead,
    Setup,
    System,
    engine_settings,
)
from looseleaf.planner.replay import Outcome, Replay, planned_scheduler
from looseleaf.planner.trace_types import TraceRequest
from looseleaf.planner.workload import arrivals, poisson

WARM_UP = 0.25
"""Of the time with requests waiting: until then the first ones, all as old, fill the memory."""


STEPS_BETWEEN = 4
"""Of beam searches, between two looks at the memory."""


@dataclass(frozen=True, slots=True)
class Full:
    """A system while requests wait and its memory is full: requests a second, mean sequences in a
    step, and where the memory was, at regular times."""

    rate: float
    batch: float
    usage: tuple[Usage, ...]
    num_preemptions: int

    def share(self, part: Callable[[Usage], int], of: Callable[[Usage], int]) -> float:
        """Ratio of sums over the samples."""
        return sum(map(part, self.usage)) / sum(map(of, self.usage))


def backlog(
    setup: Setup,
    system: System,
    requests: Sequence[TraceRequest],
    *,
    hashed_tokens: int = 0,
    beam_width: int = 1,
    block_size: int = BLOCK_SIZE,
    seconds_between: float = 0.25,
    whole: bool = False,
    every: int = 1,
    overhead: Overhead = NO_OVERHEAD,
) -> Full:
    """All requests come at once; what is measured ends when none waits any more. It is the whole
    run if that is asked for, as for what does not depend on how full the memory is, or if requests
    do not wait for long.

    Samples that are preempted find their prompt again, if another one of them still runs: vLLM
    preempts all of a request and swaps them out, so that they go on sharing. Where nothing can be
    shared, beams are what they take in memory: samples, without the copying that a change of places
    would need.
    """
    together = beam_width == 1 and any(r.num_samples > 1 for r in requests)
    settings = engine_settings(system, block_size, prefix_caching=hashed_tokens > 0 or together)
    scheduler = planned_scheduler(settings, setup.memory(block_size))
    times, clock = setup.times(system, block_size, overhead), VirtualClock()
    if beam_width > 1 and system.paged:
        searches = Searches(requests, beam_width)
        beams = RecordedBeamsExecutor(times, clock, every)
        replay = Replay(scheduler, beams)
        replay.engine.observers.append(_Looks(replay))
        replay.run(searches.events())
        ended = [s.ended for s in searches.started if s.ended is not None]
    else:
        if beam_width > 1:
            requests = [r._replace(num_samples=beam_width) for r in requests]
        replay = Replay(scheduler, PlannedExecutor(times, clock), sample_seconds=seconds_between)
        replay.run(arrivals(requests, hashed_tokens=hashed_tokens))
        ended = list(_ends(replay.result.outcomes).values())
    return _measure(replay, ended, whole)


class _Looks:
    """Where the memory is while a step is computed, every few steps. Between two steps, beams of
    one parent still share the block that each of them is about to write into."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def __call__(self, step: Step, _: object) -> None:
        if step.step_id % STEPS_BETWEEN:
            return
        scheduler, result = self._replay.engine.scheduler, self._replay.result
        result.usage.append(usage(scheduler.allocator, scheduler.running))
        result.usage_times.append(self._replay.clock.now)


def _measure(replay: Replay, ended: Sequence[float], whole: bool) -> Full:
    steps = replay.result.steps
    first, last = 0, len(steps) - 1
    if not whole:
        full = [i for i, waiting in enumerate(steps.waiting) if waiting]
        if full and full[-1] - full[0] >= len(steps) / 4:
            first, last = full[int(WARM_UP * len(full))], full[-1]
    start, end = steps.starts[first], steps.starts[last]
    seen = zip(replay.result.usage_times, replay.result.usage, strict=True)
    looks = [found for time, found in seen if start <= time <= end]
    return Full(
        sum(start < time <= end for time in ended) / (end - start),
        fmean(steps.running[first : last + 1]),
        tuple(looks),
        replay.engine.scheduler.counters.preemptions,
    )


def _ends(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """When the last sample of each request ended."""
    ends: dict[int, float] = {}
    for outcome in outcomes:
        index = int(outcome.request_id.partition("/")[0])
        ends[index] = max(ends.get(index, 0.0), outcome.finished)
    return ends


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that came at `rate` a second. `latency` is the mean over requests of the time from
    arrival to end by the tokens of the answer, in seconds."""

    rate: float
    latency: float
    batch: float


def serve(
    setup: Setup,
    system: System,
    requests: Sequence[TraceRequest],
    rate: float,
    *,
    seed: int,
    block_size: int = BLOCK_SIZE,
    overhead: Overhead = NO_OVERHEAD,
) -> Served:
    settings = engine_settings(system, block_size)
    scheduler = planned_scheduler(settings, setup.memory(block_size))
    executor = PlannedExecutor(setup.times(system, block_size, overhead), VirtualClock())
    timed = list(poisson(requests, rate, seed))
    result = Replay(scheduler, executor).run(arrivals(timed, hashed_tokens=0))
    last = timed[-1].arrival or 0.0
    batches = [
        n
        for n, start in zip(result.steps.running, result.steps.starts, strict=True)
        if WARM_UP * last <= start <= last
    ]
    latency = fmean((o.finished - o.arrival) / o.num_output_tokens for o in result.outcomes)
    return Served(rate, latency, fmean(batches))
