"""A replay as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

Process 1 is the engine: its steps, one after the other, and counters of running and waiting
requests and of blocks that are held. Process 2 has a thread for each request, with its phases. Both
are complete events (`ph` X), counters (C) and names (M) of the Trace Event Format; times are in
microseconds, to the nanosecond, so that no event overlaps the next by rounding.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError
from looseleaf.planner.plan import Plan
from looseleaf.planner.replay import Outcome
from looseleaf.planner.report.phases import PhaseWatch

ENGINE, REQUESTS = 1, 2
COUNTERS = ("running", "waiting", "blocks held")


def write_chrome_trace(path: Path, plan: Plan, watch: PhaseWatch, num_requests: int) -> int:
    """The first `num_requests` requests, and all steps until the last of them has ended. Returns
    how many events were written. Raises ConfigError if the file cannot be."""
    num_events = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for event in _events(plan, watch, num_requests):
                comma = ",\n" if num_events else ""
                file.write(comma + json.dumps(event, separators=(",", ":")))
                num_events += 1
            file.write("\n]}\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return num_events


def _events(plan: Plan, watch: PhaseWatch, num_requests: int) -> Iterator[dict[str, Any]]:
    chosen = [o for o in plan.result.outcomes if _index(o)[0] < num_requests]
    chosen.sort(key=_index)
    yield _name("process_name", ENGINE, 0, "engine")
    yield _name("thread_name", ENGINE, 1, "steps")
    yield _name("process_name", REQUESTS, 0, "requests")
    yield from _steps(plan, max((o.finished for o in chosen), default=0.0))
    for thread, outcome in enumerate(chosen, 1):
        prompt, output = outcome.num_prompt_tokens, outcome.num_output_tokens
        title = f"request {outcome.request_id}: {prompt} + {output} tokens"
        yield _name("thread_name", REQUESTS, thread, title)
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": REQUESTS,
            "tid": thread,
            "args": {"sort_index": thread},
        }
        told = {"cached tokens": outcome.num_cached_tokens, "ends by": str(outcome.reason)}
        for phase in watch.phases(outcome):
            yield _slice(phase.name, REQUESTS, thread, phase.start, phase.end, told)


def _steps(plan: Plan, until: float) -> Iterator[dict[str, Any]]:
    steps, num_blocks = plan.result.steps, plan.memory.num_blocks
    shown: tuple[int, ...] = (-1, -1, -1)
    end = 0.0
    for start, seconds, running, waiting, available in zip(
        steps.starts, steps.seconds, steps.running, steps.waiting, steps.available, strict=True
    ):
        if start >= until:
            break
        if start > end:
            yield from _counters(end, shown, (0, 0, 0))
            shown = (0, 0, 0)
        end = start + seconds
        now = (running, waiting, num_blocks - available)
        yield _slice("step", ENGINE, 1, start, end, dict(zip(COUNTERS, now, strict=True)))
        yield from _counters(start, shown, now)
        shown = now
    yield from _counters(end, shown, (0, 0, 0))


def _counters(
    time: float, before: tuple[int, ...], now: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    for name, last, value in zip(COUNTERS, before, now, strict=True):
        if value != last:
            yield {
                "ph": "C",
                "name": name,
                "pid": ENGINE,
                "ts": _nanoseconds(time) / 1000,
                "args": {name: value},
            }


def _slice(
    name: str, process: int, thread: int, start: float, end: float, told: dict[str, Any]
) -> dict[str, Any]:
    first = _nanoseconds(start)
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": first / 1000,
        "dur": (_nanoseconds(end) - first) / 1000,
        "args": told,
    }


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _nanoseconds(time: float) -> int:
    return round(time * 1e9)


def _index(outcome: Outcome) -> tuple[int, int]:
    """Of the request in the trace, and of the sample among its own."""
    index, _, number = outcome.request_id.partition("/")
    return int(index), int(number)
