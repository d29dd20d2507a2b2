"""What a search has found, for people and for programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from looseleaf.planner.amounts import seconds_text, share
from looseleaf.planner.price import Price, price
from looseleaf.planner.search import PRECISION, QUEUE, LargestLoad, Scenario, Trial, rate_of
from looseleaf.planner.sessions import num_sessions

_ASSUMED = (
    "latencies only grow with the rate: a rate is right to "
    f"{100 * (PRECISION - 1):.0f}%, in one draw of this trace"
)
_ASSUMED_OF_A_LOOP = (
    "latencies only grow with the clients: their number is right to "
    f"{100 * (PRECISION - 1):.0f}% or to one of them, in one draw of this trace; all clients begin "
    "at once, and requests/s are those of the whole replay"
)

SHORT = 20
"""Times the largest limit: if a trial's requests come in less time, an overload may not show."""

ROUNDS = 5
"""If each client has fewer sessions one after the other, most of what it sees is how all begin."""


class Needed(NamedTuple):
    """`trial` is the one with the fewest replicas that keep the limits at the `demand`, requests a
    second or clients at once; None if `most` do not."""

    demand: float
    trial: Trial | None
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`by_size` are the largest loads by block size, of which `best` is the best one."""

    scenario: Scenario
    by_size: Mapping[int, LargestLoad]
    best: int
    needed: Needed | None
    devices_per_replica: int
    price_per_hour: float | None
    model: str
    hardware: str
    cost_model: str
    known_error: str

    @property
    def closed(self) -> bool:
        """Whether a load is so many clients of a closed loop."""
        return self.scenario.trace.users is not None

    @property
    def assumed(self) -> str:
        return _ASSUMED_OF_A_LOOP if self.closed else _ASSUMED


def as_json(found: Found) -> dict[str, Any]:
    scenario, needed = found.scenario, found.needed
    rows = [_row(found, size, one) for size, one in found.by_size.items()]
    return {
        "model": found.model,
        "hardware": found.hardware,
        "tensor_parallel_size": found.devices_per_replica,
        "cost_model": {"name": found.cost_model, "known_error": found.known_error},
        "requests": len(scenario.trace.requests),
        "limits": [limit._asdict() for limit in scenario.slo.limits],
        "replicas": scenario.num_replicas,
        "routing": scenario.routing if scenario.num_replicas > 1 else None,
        "price_per_hour": found.price_per_hour,
        "block_sizes": rows,
        "best": next(row for row in rows if row["block_size"] == found.best),
        "replicas_needed": None if needed is None else _needed(found, needed),
        "assumed": found.assumed,
        "warnings": warnings(found),
    }


def _row(found: Found, size: int, one: LargestLoad) -> dict[str, Any]:
    row: dict[str, Any] = {
        "block_size": size,
        "rate": one.rate,
        "concurrency": round(one.best.load) if one.best is not None and found.closed else None,
        "binding": one.binding,
        "trials": one.num_trials,
    }
    if one.best is not None:
        row |= _figures(found, one.best)
    return row


def _needed(found: Found, needed: Needed) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "rate": None if found.closed else needed.demand,
        "concurrency": round(needed.demand) if found.closed else None,
        "replicas": None,
        "most": needed.most,
    }
    if needed.trial is not None:
        rate = rate_of(found.scenario, needed.trial)
        answer |= {"rate": rate, "replicas": needed.trial.num_replicas}
        answer |= _figures(found, needed.trial)
    return answer


def _figures(found: Found, trial: Trial) -> dict[str, Any]:
    summary = trial.summary
    assert summary is not None
    cost = _price(found, trial)
    return {
        "measured": [one.as_json() for one in trial.measured],
        "attainment": trial.attainment,
        "hit_rate": summary.hit_rate,
        "preemptions": summary.preemptions,
        "kv_used_peak": summary.kv_used_peak,
        "running_mean": summary.running_mean,
        "cost": None if cost is None else cost.as_json(),
    }


def _price(found: Found, trial: Trial) -> Price | None:
    """While requests come: what the last answers take is not paid for."""
    summary = trial.summary
    assert summary is not None
    if not summary.requests or not summary.output_tokens:
        return None
    requests = len(found.scenario.trace.requests) - summary.refused
    rate = rate_of(found.scenario, trial)
    output = rate * summary.output_tokens / requests
    every = rate * (summary.prompt_tokens + summary.output_tokens) / requests
    devices = trial.num_replicas * found.devices_per_replica
    return price(devices, every, output, found.price_per_hour)


def warnings(found: Found) -> list[str]:
    best = found.by_size[found.best]
    if best.best is None:
        return [
            f"no {'concurrency' if found.closed else 'rate'} keeps the limits: {best.binding} is "
            "broken even by requests that come one at a time; a faster device, more of them "
            "(tensor_parallel_size) or another limit would help"
        ]
    summary = best.best.summary
    assert summary is not None
    told = _shortness(found, best.best, best.binding)
    if summary.refused:
        told.append(f"{summary.refused} requests can never fit: they count for nothing here")
    if found.needed is not None and found.needed.trial is None:
        own = "its own concurrency" if found.closed else "the trace's own rate"
        told.append(f"{found.needed.most} replicas do not keep the limits at {own}")
    return told


def _shortness(found: Found, trial: Trial, binding: str | None) -> list[str]:
    """Of the trace, for what was found in it."""
    requests = found.scenario.trace.requests
    if found.closed:
        rounds = num_sessions(requests) / trial.load
        if binding is None:
            return [
                f"all {trial.load:.0f} requests or sessions at once keep the limits: a longer "
                "trace may hold more clients (and one limit on ttft, where they wait for seats)"
            ]
        if rounds < ROUNDS:
            return [
                f"the trace is short: each of so many clients has its turn {rounds:.1f} times, and "
                "the first time all come at once; play more (--limit), or trust less"
            ]
        return []
    if binding is None:
        return [
            f"all {len(requests)} requests at once keep the limits: the trace is too short to find "
            "a largest rate"
        ]
    span = (requests[-1].arrival or 0.0) / trial.load
    largest = max(limit.seconds for limit in found.scenario.slo.limits)
    if span < SHORT * largest:
        return [
            f"the trace is short: at that rate its requests come within {seconds_text(span)}, in "
            f"which an overload hardly shows in limits of {seconds_text(largest)}; play more "
            "(--limit), or trust less"
        ]
    return []


def as_text(found: Found) -> str:
    scenario = found.scenario
    replicas = ""
    if scenario.num_replicas > 1:
        replicas = f", {scenario.num_replicas} replicas, {scenario.routing}"
    lines = [
        f"{found.model} on {found.devices_per_replica} x {found.hardware}{replicas}; "
        f"{len(scenario.trace.requests)} requests",
        f"step times: {found.cost_model}; error: {found.known_error}",
        f"limits: {scenario.slo}",
        "",
    ]
    limits = [limit.name for limit in scenario.slo.limits]
    clients = ["clients"] if found.closed else []
    titles = ("requests/s", "then broken", *limits, "all kept", "hits", "KV peak")
    table = [["block size", *clients, *titles]]
    for size, one in found.by_size.items():
        number = ["none" if one.best is None else f"{one.best.load:.0f}"] if found.closed else []
        table.append([str(size), *number, *_cells(one, len(limits))])
    lines += _aligned(table)
    best = found.by_size[found.best]
    if best.best is not None and best.rate is not None:
        most = f"{best.rate:.2f} requests/s"
        if found.closed:
            most = f"{best.best.load:.0f} clients at once, which get {most}"
        lines += ["", f"best: block_size {found.best}, up to {most}"]
        lines += _cost_lines(found, best.best)
    if found.needed is not None:
        lines += ["", *_needed_lines(found, found.needed)]
    lines += ["", f"assumed: {found.assumed}"]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in warnings(found))])


def _cells(one: LargestLoad, num_limits: int) -> list[str]:
    if one.best is None or one.rate is None:
        return ["none", one.binding or "-", *["-"] * (num_limits + 3)]
    trial, summary = one.best, one.best.summary
    assert summary is not None
    assert trial.attainment is not None
    binding = {QUEUE: "the queue grows", None: "nothing"}.get(one.binding, one.binding)
    return [
        f"{one.rate:.2f}",
        str(binding),
        *("-" if m.value is None else seconds_text(m.value) for m in trial.measured),
        share(trial.attainment),
        share(summary.hit_rate),
        share(summary.kv_used_peak),
    ]


def _needed_lines(found: Found, needed: Needed) -> list[str]:
    unit = "clients at once" if found.closed else "requests/s"
    demand = f"{needed.demand:.{0 if found.closed else 2}f} {unit}"
    if needed.trial is None:
        return [f"for {demand}: more than {needed.most} replicas"]
    number = needed.trial.num_replicas
    plural = "s" if number > 1 else ""
    routing = f", {found.scenario.routing}" if number > 1 else ""
    kept = ", ".join(
        f"{m.limit.name} {seconds_text(m.value)}" for m in needed.trial.measured if m.value
    )
    lines = [f"for {demand}: {number} replica{plural}{routing} ({kept})"]
    return [*lines, *_cost_lines(found, needed.trial)]


def _cost_lines(found: Found, trial: Trial) -> list[str]:
    cost = _price(found, trial)
    if cost is None:
        return []
    if cost.per_million_tokens is None:
        return [
            f"a million tokens take {cost.device_hours_per_million_tokens:.4f} device hours, a "
            f"million output tokens {cost.device_hours_per_million_output_tokens:.4f} "
            "(--price-per-hour makes money of it)"
        ]
    return [
        f"a million tokens cost {cost.per_million_tokens:.4f}, a million output tokens "
        f"{cost.per_million_output_tokens:.4f}, at {found.price_per_hour:g} an hour"
    ]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
