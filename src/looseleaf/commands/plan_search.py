"""`looseleaf plan --slo ... --search`"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from looseleaf.bench.progress import progress
from looseleaf.commands.options import print_json
from looseleaf.commands.plan_points import with_settings
from looseleaf.commands.plan_search_arguments import BLOCK_SIZES
from looseleaf.commands.plan_setup import Deployment, deployment, workload
from looseleaf.core.errors import ConfigError
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.search import (
    MAX_REPLICAS,
    PRECISION,
    LargestLoad,
    Scenario,
    largest_load,
    replicas_needed,
)
from looseleaf.planner.search_report import Found, Needed, as_json, as_text
from looseleaf.planner.trials import in_order

MOST_REQUESTS = 2000
"""That one trial plays, unless --limit says how many."""

NEAR = 1.1
"""How far other block sizes are tried from what the first one reached."""

_TRIALS = (12, 6, 3)
"""Of the first block size, of each other one, and of the number of replicas: about."""


class _Task(NamedTuple):
    options: argparse.Namespace
    start: float
    step: float


def run(options: argparse.Namespace) -> None:
    if options.slo is None:
        raise ConfigError("which limits? Pass --slo, like ttft=1s,tpot=50ms")
    asked = options.rate is not None or options.concurrency is not None
    has_load = asked or read_workload(options.trace).timed
    given = with_settings(
        options,
        {
            "limit": options.limit or MOST_REQUESTS,
            "rate": options.rate if has_load else 1.0,
        },
    )
    own, others = given.block_size, [size for size in BLOCK_SIZES if size != given.block_size]
    total = _TRIALS[0] + _TRIALS[1] * len(others) + _TRIALS[2] * has_load
    with progress("replays", total) as advance:
        by_size = {own: _largest(given, on_trial=advance)}
        best = by_size[own].best
        if best is not None:
            tasks = [
                _Task(with_settings(given, {"block_size": size}), best.load, NEAR)
                for size in others
            ]
            for size, one in zip(others, in_order(_search, tasks, options.jobs), strict=True):
                by_size[size] = one
                for _ in range(one.num_trials):
                    advance()
        chosen = _best(by_size, own)
        needed = None
        deployed = deployment(with_settings(given, {"block_size": chosen}))
        scenario = _scenario(given, deployed)
        best = by_size[chosen].best
        if has_load and best is not None:
            most = best.load * scenario.demand / scenario.own_load
            trial = replicas_needed(scenario, most / given.replicas, on_trial=advance)
            needed = Needed(scenario.demand, trial, MAX_REPLICAS)
    found = Found(
        scenario=scenario,
        by_size=dict(sorted(by_size.items())),
        best=chosen,
        needed=needed,
        devices_per_replica=given.tensor_parallel_size,
        price_per_hour=options.price_per_hour,
        model=deployed.fitted.shape.name,
        hardware=deployed.hardware.name,
        cost_model=deployed.timing.model.name,
        known_error=deployed.timing.model.known_error,
    )
    if options.json:
        print_json(as_json(found))
    else:
        print(as_text(found))


def _search(task: _Task) -> LargestLoad:
    return _largest(task.options, start=task.start, step=task.step)


def _largest(
    options: argparse.Namespace,
    *,
    start: float | None = None,
    step: float = 2.0,
    on_trial: Callable[[], None] = lambda: None,
) -> LargestLoad:
    scenario = _scenario(options, deployment(options))
    return largest_load(scenario, start=start, step=step, on_trial=on_trial)


def _scenario(options: argparse.Namespace, deployed: Deployment) -> Scenario:
    return Scenario(
        trace=workload(options),
        settings=deployed.settings,
        memory=deployed.memory,
        times=deployed.timing.times,
        slo=options.slo,
        num_replicas=options.replicas,
        routing=options.routing,
        swap_bandwidth=deployed.swap_bandwidth,
        disk_speed=deployed.disk_speed,
    )


def _best(by_size: dict[int, LargestLoad], own: int) -> int:
    """The own one, unless another is better by more than the search tells apart."""
    loads = {size: one.best.load for size, one in by_size.items() if one.best is not None}
    if not loads:
        return own
    best = max(loads, key=lambda size: loads[size])
    return own if loads[best] <= PRECISION * loads.get(own, 0.0) else best
