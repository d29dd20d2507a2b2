"""Several engines behind a router, on one virtual clock."""

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from looseleaf.core.counters import Counters
from looseleaf.core.errors import ConfigError
from looseleaf.engine.build import without_garbage_collection
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.agenda import Event
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.plan import (
    Plan,
    check_num_blocks,
    check_plannable,
    sample_seconds,
    warnings_of,
)
from looseleaf.planner.prefix_warnings import lost_hits
from looseleaf.planner.replay import Outcome, Replay, Replayed, Steps, planned_scheduler
from looseleaf.planner.sessions import sessions
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary import Summary, summarize
from looseleaf.planner.trace_types import Trace
from looseleaf.planner.workload import arrivals
from looseleaf.routing.policies import POLICIES, Router, router

OnEnd = Callable[[Outcome], None]
"""Told of every sequence that ends. What it raises ends the replay."""


class Replicas:
    """`num_replicas` engines of the same settings, each with a cache of its own.

    Before a router looks at loads, each engine does the steps that begin before the request comes;
    one that does not look needs none of that, and the engines run one after the other.
    """

    def __init__(
        self,
        settings: EngineSettings,
        memory: MemoryPlan,
        times: StepTimes,
        *,
        num_replicas: int = 1,
        routing: str = POLICIES[0],
        sample_seconds: float | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        check_plannable(settings)
        if settings.swap_space is not None:
            raise ConfigError("swap_space is planned on one engine: leave it out, or the replicas")
        if num_replicas < 1:
            raise ConfigError(f"replicas is {num_replicas}, but it must be at least 1")
        if routing not in POLICIES:
            raise ConfigError(f"routing {routing!r} is not known; choose one of {POLICIES}")
        check_num_blocks(num_replicas * memory.num_blocks)
        self.settings = settings
        self.memory = memory
        self.routing = routing
        self.replicas = [
            _Replica(settings, memory, times, sample_seconds, on_end) for _ in range(num_replicas)
        ]
        self.parts: list[list[int]] = [[] for _ in self.replicas]
        """The places in the trace of the requests that each was sent."""

    def run(self, trace: Trace) -> None:
        """Route and replay requests, which must have times. A session stays where it began."""
        if trace.users is not None:
            raise ConfigError("a closed loop is planned on one engine: leave it out, or replicas")
        capacity = max(1, self.memory.num_tokens // trace.hashed_tokens)
        routing: Router[int] = router(self.routing, capacity)
        events = arrivals(trace.requests, hashed_tokens=trace.hashed_tokens)
        loads = dict.fromkeys(range(len(self.replicas)), 0)
        with without_garbage_collection():
            for session, event in zip(sessions(trace.requests), events, strict=True):
                if routing.needs_loads:
                    for name, replica in enumerate(self.replicas):
                        replica.advance(event.time)
                        loads[name] = replica.load(event.time)
                chosen = routing.route(loads, session[0][1].hash_ids)
                self.parts[chosen] += [index for index, _ in session]
                self.replicas[chosen].ask(event, at_once=routing.needs_loads)
            for replica in self.replicas:
                replica.finish()

    def summaries(self) -> list[Summary]:
        return [self._summary(r.replay.result, r.counters) for r in self.replicas]

    def summary(self) -> Summary:
        """Of all together; `busy`, means and peaks are those of one replica."""
        counters = [dataclasses.asdict(replica.counters) for replica in self.replicas]
        totals = Counters(**{name: sum(one[name] for one in counters) for name in counters[0]})
        found = self._summary(self.result(), totals)
        return dataclasses.replace(found, busy=found.busy / len(self.replicas))

    def result(self) -> Replayed:
        return merged([replica.replay.result for replica in self.replicas])

    def _summary(self, result: Replayed, counters: Counters) -> Summary:
        return summarize(
            result,
            counters,
            num_blocks=self.memory.num_blocks,
            block_size=self.memory.block_size,
            prefix_caching=self.settings.enable_prefix_caching,
        )


class _Replica:
    def __init__(
        self,
        settings: EngineSettings,
        memory: MemoryPlan,
        times: StepTimes,
        sample_seconds: float | None,
        on_end: OnEnd | None,
    ) -> None:
        scheduler = planned_scheduler(settings, memory)
        self.counters = scheduler.counters
        self._scheduler = scheduler
        self._on_end = on_end
        self._coming: list[Event] = []
        self.replay = Replay(
            scheduler,
            PlannedExecutor(times, VirtualClock()),
            sample_seconds=sample_seconds,
            on_progress=None if on_end is None else self._ended,
        )

    def advance(self, time: float) -> None:
        """Do the steps that begin before `time`, as if something came then."""
        if self.replay.has_work:
            try:
                self.replay.run([Event(time, _arrived)])
            except _Arrived:
                return

    def load(self, time: float) -> int:
        """Sequences that have not ended at `time`, up to which it has been advanced; a step that
        is being computed then has not given anything yet."""
        scheduler = self._scheduler
        waiting = len(scheduler.waiting) + len(scheduler.leaders.held())
        num_ending = 0
        for outcome in reversed(self.replay.result.outcomes):
            if outcome.finished <= time:
                break
            num_ending += 1
        return len(scheduler.running) + waiting + num_ending

    def ask(self, event: Event, *, at_once: bool) -> None:
        """`at_once` if it has been advanced to the event's time."""
        if at_once:
            self.replay.clock.wait_until(event.time)
            event.act(self.replay)
        else:
            self._coming.append(event)

    def finish(self) -> None:
        self.replay.run(self._coming)

    def _ended(self, _: int) -> None:
        assert self._on_end is not None
        self._on_end(self.replay.result.outcomes[-1])


class _Arrived(Exception):
    pass


def _arrived(_: Any) -> None:
    raise _Arrived


def merged(results: Sequence[Replayed]) -> Replayed:
    """What happened anywhere, in the order of time."""
    if len(results) == 1:
        return results[0]
    found = Replayed(num_plain_steps=sum(one.num_plain_steps for one in results))
    found.outcomes = sorted((o for one in results for o in one.outcomes), key=lambda o: o.finished)
    found.refused = sorted((r for one in results for r in one.refused), key=lambda r: r.arrival)
    found.usage = [sample for one in results for sample in one.usage]
    starts = [start for one in results for start in one.steps.starts]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    for field in dataclasses.fields(Steps):
        columns: list[array[Any]] = [getattr(one.steps, field.name) for one in results]
        values = [value for column in columns for value in column]
        getattr(found.steps, field.name).extend(values[place] for place in order)
    return found


def run_replicas(
    trace: Trace,
    settings: EngineSettings,
    memory: MemoryPlan,
    times: StepTimes,
    *,
    num_replicas: int,
    routing: str,
    on_progress: Callable[[int], None] | None = None,
) -> Plan:
    """Replay requests, which must have times, on several engines of these settings. `on_progress`
    is told how many sequences have ended, whenever one has."""
    num_ended = 0

    def ended(_: Outcome) -> None:
        nonlocal num_ended
        num_ended += 1
        if on_progress is not None:
            on_progress(num_ended)

    replicas = Replicas(
        settings,
        memory,
        times,
        num_replicas=num_replicas,
        routing=routing,
        sample_seconds=sample_seconds(trace, settings, times),
        on_end=ended,
    )
    replicas.run(trace)
    summary, result = replicas.summary(), replicas.result()
    warnings = warnings_of(trace, summary, result)
    if lost := lost_hits(trace, replicas.parts, summary, routing):
        warnings.append(lost)
    return Plan(
        settings=settings,
        memory=memory,
        summary=summary,
        result=result,
        warnings=tuple(warnings),
        replicas=tuple(replicas.summaries()),
        routing=routing,
    )
