"""Several engines behind a router, on one virtual clock."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter
from typing import Any

from looseleaf.core.counters import Counters
from looseleaf.core.errors import ConfigError
from looseleaf.engine.build import without_garbage_collection
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.agenda import Event, Player
from looseleaf.planner.plan import Plan, check_num_blocks, sample_seconds, warnings_of
from looseleaf.planner.planned_engine import planned_replay
from looseleaf.planner.prefix_warnings import lost_hits
from looseleaf.planner.replay import Outcome, Replayed, Steps
from looseleaf.planner.sessions import Session
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary import Summary, summarize
from looseleaf.planner.trace_types import Trace
from looseleaf.planner.workload import starts
from looseleaf.routing.policies import POLICIES, Router, router
from looseleaf.tiers.tiers import TierFigures
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

OnEnd = Callable[[Outcome], None]
"""Told of every sequence that ends. What it raises ends the replay."""


class Replicas:
    """`num_replicas` engines of the same settings, each with a cache of its own.

    Before a router looks at loads, each engine does the steps that begin before the request comes;
    one that does not look needs none of that, and the engines run one after the other. In a closed
    loop a request comes because another has ended, on whatever engine: all go on together then.
    """

    def __init__(
        self,
        settings: EngineSettings,
        memory: MemoryPlan,
        times: StepTimes,
        *,
        num_replicas: int = 1,
        routing: str = POLICIES[0],
        swap_bandwidth: float | None = None,
        disk_speed: DiskSpeed = ASSUMED,
        sample_seconds: float | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        if num_replicas < 1:
            raise ConfigError(f"replicas is {num_replicas}, but it must be at least 1")
        if routing not in POLICIES:
            raise ConfigError(f"routing {routing!r} is not known; choose one of {POLICIES}")
        check_num_blocks(num_replicas * memory.num_blocks)
        self.settings = settings
        self.memory = memory
        self.routing = routing
        self.replicas = [
            _Replica(settings, memory, times, swap_bandwidth, disk_speed, sample_seconds, on_end)
            for _ in range(num_replicas)
        ]
        self.parts: list[list[int]] = [[] for _ in self.replicas]
        """The places in the trace of the requests that each was sent."""

    def run(self, trace: Trace) -> None:
        """Route and replay requests, which must have times. A session stays where it began."""
        capacity = max(1, self.memory.num_tokens // trace.hashed_tokens)
        routing: Router[int] = router(self.routing, capacity)
        with without_garbage_collection():
            if trace.users is None:
                self._run_open(trace, routing)
            else:
                self._run_loop(trace, routing)
            for replica in self.replicas:
                replica.finish()

    def _run_open(self, trace: Trace, routing: Router[int]) -> None:
        for session, event in starts(trace.requests, hashed_tokens=trace.hashed_tokens):
            if routing.needs_loads:
                for replica in self.replicas:
                    replica.advance(event.time)
            self._send(routing, session, event, at_once=routing.needs_loads)

    def _run_loop(self, trace: Trace, routing: Router[int]) -> None:
        """The engine whose next step begins first does it. It ends later than it began: so whatever
        the others' steps lead to comes after it has begun."""
        order = count()
        coming: list[tuple[float, int, Session, Event]] = []

        def begin(player: Player, session: Session, event: Event) -> None:
            heappush(coming, (event.time, next(order), session, event))
            player.schedule(Event(event.time, _arrived))  # it may be routed to where this one was

        for session, event in starts(
            trace.requests, hashed_tokens=trace.hashed_tokens, users=trace.users, begin=begin
        ):
            heappush(coming, (event.time, next(order), session, event))
        while True:
            first = min(self.replicas, key=lambda replica: replica.replay.next_time)
            now = first.replay.next_time
            next_start = coming[0][0] if coming else inf
            if coming and next_start <= now:
                _, _, session, event = heappop(coming)
                self._send(routing, session, event, at_once=True)
            elif now == inf:
                return
            else:
                others = (r.replay.next_time for r in self.replicas if r is not first)
                until = min((next_start, *others))
                first.advance(max(until, nextafter(now, inf)))  # of several, one has to begin

    def _send(self, routing: Router[int], session: Session, event: Event, *, at_once: bool) -> None:
        loads = dict.fromkeys(range(len(self.replicas)), 0)
        if routing.needs_loads:
            loads = {name: self.replicas[name].load(event.time) for name in loads}
        chosen = routing.route(loads, session[0][1].hash_ids)
        self.parts[chosen] += [index for index, _ in session]
        self.replicas[chosen].ask(event, at_once=at_once)

    def summaries(self) -> list[Summary]:
        return [self._summary(r.replay.result, r.counters) for r in self.replicas]

    def summary(self) -> Summary:
        """Of all together; `busy`, means and peaks are those of one replica."""
        totals = Counters(**_sums([asdict(replica.counters) for replica in self.replicas]))
        found = self._summary(self.result(), totals)
        return replace(found, busy=found.busy / len(self.replicas))

    def tiers(self) -> TierFigures | None:
        """Of all together; None if there are none."""
        found = [r.replay.engine.tiers for r in self.replicas]
        rows = [asdict(tiers.figures()) for tiers in found if tiers is not None]
        return TierFigures(**_sums(rows)) if rows else None

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
        swap_bandwidth: float | None,
        disk_speed: DiskSpeed,
        sample_seconds: float | None,
        on_end: OnEnd | None,
    ) -> None:
        self._on_end = on_end
        self._coming: list[Event] = []
        self.replay = planned_replay(
            settings,
            memory,
            times,
            swap_bandwidth=swap_bandwidth,
            disk_speed=disk_speed,
            sample_seconds=sample_seconds,
            on_progress=None if on_end is None else self._ended,
        )
        self._scheduler = self.replay.engine.scheduler
        self.counters = self._scheduler.counters

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


def _sums(rows: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in rows[0]}


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
    for field in fields(Steps):
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
    swap_bandwidth: float | None = None,
    disk_speed: DiskSpeed = ASSUMED,
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
        swap_bandwidth=swap_bandwidth,
        disk_speed=disk_speed,
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
        tiers=replicas.tiers(),
    )
