"""The largest load that keeps the limits, and how many replicas a load needs.

A load is a rate, or in a closed loop so many clients at once. Both assume that latencies only grow
with the load, and only shrink with more replicas: what lies between two that were tried is not
looked at.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.replay import Outcome
from looseleaf.planner.replicas import Replicas
from looseleaf.planner.sessions import num_sessions
from looseleaf.planner.slo import Limit, Measured, Slo, exceeds
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace_types import Trace
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

PRECISION = 1.02
"""How far apart the load that was found and the one that is too much may be. Of clients there is
none between two that follow each other."""

ALONE = 1e-6
"""Times the trace's own rate: each request has the engine for itself."""

FALLING_BEHIND = 0.05
"""Of the time in which requests come: if those of its last quarter wait longer than that for a
seat, the queue only grows, and with more requests every limit would be broken."""

QUEUE = "queue"
"""What binds where requests come faster than they are answered."""

MAX_REPLICAS = 64
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is searched with. `trace` has times."""

    trace: Trace
    settings: EngineSettings
    memory: MemoryPlan
    times: StepTimes
    slo: Slo
    num_replicas: int = 1
    routing: str = "round-robin"
    swap_bandwidth: float | None = None
    disk_speed: DiskSpeed = ASSUMED
    """These two as `run_plan` has them."""

    @property
    def own_load(self) -> float:
        """Of the trace as it is, in what trials try: times its speed, or clients at once."""
        return 1.0 if self.trace.users is None else float(self.trace.users)

    @property
    def demand(self) -> float:
        """The same in requests a second, or clients at once. Raises ConfigError if requests come
        all at once."""
        return self.rate if self.trace.users is None else float(self.trace.users)

    @property
    def rate(self) -> float:
        """Requests a second, of the trace as it is, which is no closed loop. Raises ConfigError if
        they come all at once."""
        requests = self.trace.requests
        span = (requests[-1].arrival or 0.0) - (requests[0].arrival or 0.0)
        if len(requests) < 2 or span <= 0:
            raise ConfigError(
                "the requests come all at once: nothing says how fast; pass --rate, in requests a "
                "second"
            )
        return (len(requests) - 1) / span


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One replay, at `load` times the scenario's rate, or with so many clients at once. `broken`
    names a limit that was not kept, or QUEUE; one that was broken for sure was not played to its
    end, and has no figures."""

    load: float
    num_replicas: int
    broken: str | None
    measured: tuple[Measured, ...] = ()
    attainment: float | None = None
    summary: Summary | None = None

    @property
    def kept(self) -> bool:
        return self.broken is None


class LargestLoad(NamedTuple):
    """`best` is the largest load that kept the limits, None if not even single requests do.
    `binding` is what the next larger one that was tried broke; None if nothing does: the whole
    trace at once keeps the limits. `rate` is in requests a second, for all replicas together."""

    best: Trial | None
    rate: float | None
    binding: str | None
    num_trials: int


OnTrial = Callable[[], None]


def largest_load(
    scenario: Scenario,
    *,
    start: float | None = None,
    step: float = 2.0,
    on_trial: OnTrial = lambda: None,
) -> LargestLoad:
    """By trying loads: `start` or the scenario's own, and `step` times more or less, until one is
    kept and one is not; then ever closer in between (to PRECISION). Raises ConfigError if all
    requests come at once."""
    scale = _scale(scenario)
    num_trials = 0

    def tried(load: float) -> Trial:
        nonlocal num_trials
        num_trials += 1
        found = attempt(scenario, load)
        on_trial()
        return found

    low = high = None
    first = load = min(scale.most, scenario.own_load if start is None else start)
    for _ in range(_MOST_DOUBLINGS):
        found = tried(load)
        if found.kept:
            low, load = found, scale.more(load, step)
        else:
            high, load = found, scale.less(load, step)
            if low is None and high.load == first:  # before going down any further
                alone = tried(scale.alone) if first > scale.alone else found
                if not alone.kept:
                    return LargestLoad(None, None, alone.broken, num_trials)
        if (low is not None and high is not None) or load == found.load:
            break
    while low is not None and high is not None:
        between = scale.between(low.load, high.load)
        if between is None:
            break
        found = tried(between)
        if found.kept:
            low = found
        else:
            high = found
    rate = None if low is None else rate_of(scenario, low)
    return LargestLoad(low, rate, None if high is None else high.broken, num_trials)


class _Speeds:
    """Times the trace's own rate."""

    alone = ALONE
    most = inf

    def more(self, load: float, step: float) -> float:
        return load * step

    def less(self, load: float, step: float) -> float:
        return load / step

    def between(self, low: float, high: float) -> float | None:
        """None if there is nothing worth trying."""
        return None if high <= PRECISION * low else sqrt(low * high)


class _Clients(_Speeds):
    """Whole numbers, of which more than there are sessions are no more."""

    alone = 1.0

    def __init__(self, num_sessions: int) -> None:
        self.most = float(num_sessions)

    def more(self, load: float, step: float) -> float:
        return min(self.most, float(max(load + 1, round(load * step))))

    def less(self, load: float, step: float) -> float:
        return max(1.0, float(min(load - 1, round(load / step))))

    def between(self, low: float, high: float) -> float | None:
        found = super().between(low, high)
        return None if found is None or high <= low + 1 else float(round(found))


def _scale(scenario: Scenario) -> _Speeds:
    if scenario.trace.users is not None:
        return _Clients(num_sessions(scenario.trace.requests))
    assert scenario.rate > 0  # or it says why there is none
    return _Speeds()


def rate_of(scenario: Scenario, trial: Trial) -> float:
    """Requests a second: those that come, or of a closed loop what was answered in all its time,
    its beginning and end too. The trial must have figures."""
    if scenario.trace.users is None:
        return trial.load * scenario.rate
    assert trial.summary is not None
    num_answered = len(scenario.trace.requests) - trial.summary.refused
    return num_answered / trial.summary.duration if trial.summary.duration else 0.0


def replicas_needed(
    scenario: Scenario, demand_of_one: float, *, on_trial: OnTrial = lambda: None
) -> Trial | None:
    """The fewest replicas that keep the limits at the scenario's own load; None if MAX_REPLICAS do
    not. The first guess is by what one replica can take, in the same unit as the `demand`."""

    def tried(num_replicas: int) -> Trial:
        found = attempt(scenario, scenario.own_load, num_replicas)
        on_trial()
        return found

    number = min(MAX_REPLICAS, max(1, round(scenario.demand / demand_of_one + 0.499)))
    found = tried(number)
    if not found.kept:
        while not found.kept:
            if number == MAX_REPLICAS:
                return None
            number += 1
            found = tried(number)
        return found
    while number > 1:
        number -= 1
        fewer = tried(number)
        if not fewer.kept:
            break
        found = fewer
    return found


def attempt(scenario: Scenario, load: float, num_replicas: int | None = None) -> Trial:
    """Replay the scenario at that load."""
    trace = at_load(scenario.trace, load)
    number = num_replicas or scenario.num_replicas
    watch = _Watch(scenario.slo, sum(request.num_samples for request in trace.requests))
    replicas = Replicas(
        scenario.settings,
        scenario.memory,
        scenario.times,
        num_replicas=number,
        routing=scenario.routing,
        swap_bandwidth=scenario.swap_bandwidth,
        disk_speed=scenario.disk_speed,
        on_end=watch.ended,
    )
    try:
        replicas.run(trace)
    except _Broken as broken:
        return Trial(load=load, num_replicas=number, broken=broken.limit.name)
    outcomes = replicas.result().outcomes
    measured = scenario.slo.measured(outcomes)
    broken_limit = next((one.limit.name for one in measured if not one.met), None)
    if broken_limit is None and trace.users is None and falling_behind(outcomes):
        broken_limit = QUEUE
    return Trial(
        load=load,
        num_replicas=number,
        broken=broken_limit,
        measured=measured,
        attainment=scenario.slo.attainment(outcomes),
        summary=replicas.summary(),
    )


def at_load(trace: Trace, load: float) -> Trace:
    """So many times as fast, or with so many clients at once."""
    if trace.users is not None:
        return trace._replace(users=round(load))
    requests = tuple(r._replace(arrival=(r.arrival or 0.0) / load) for r in trace.requests)
    return trace._replace(requests=requests)


def falling_behind(outcomes: Sequence[Outcome]) -> bool:
    """Whether requests came faster than they were answered."""
    if not outcomes:
        return False
    first = min(o.arrival for o in outcomes)
    span = max(o.arrival for o in outcomes) - first
    waits = [
        o.scheduled - o.arrival
        for o in outcomes
        if o.scheduled is not None and o.arrival >= first + 0.75 * span
    ]
    return bool(waits) and sum(waits) / len(waits) > FALLING_BEHIND * span > 0


class _Broken(Exception):
    def __init__(self, limit: Limit) -> None:
        super().__init__(limit.name)
        self.limit = limit


class _Watch:
    """Ends a replay as soon as too many requests have broken a limit, whatever the others do."""

    def __init__(self, slo: Slo, num_requests: int) -> None:
        # One more than the percentile allows: it lies between two values.
        self._left = {one: int((1 - one.share) * num_requests) + 1 for one in slo.limits}

    def ended(self, outcome: Outcome) -> None:
        for limit, left in self._left.items():
            if exceeds(limit, outcome):
                if left == 0:
                    raise _Broken(limit)
                self._left[limit] = left - 1
