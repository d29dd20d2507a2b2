"""What a real server did with the same requests, laid over the replay.

Curves are CSV with a row now and then:

    t or time                              seconds since the recording began
    running, waiting                       requests
    kv_cache_pct (percent), or
    kv_cache_usage_perc (a share)          of the KV cache in use; may be missing

Requests are JSON lines with queued_ts, first_token_ts, last_token_ts (seconds on one clock) and
output_toks (or output_tokens).
"""

import csv
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.planner.plan import Plan


class Curves(NamedTuple):
    """At each of `times`, which ascend. `kv_used` are shares; None if not recorded."""

    times: list[float]
    running: list[float]
    waiting: list[float]
    kv_used: list[float] | None


class Measured(NamedTuple):
    """Of the recorded requests, in seconds."""

    makespan: float
    ttft_median: float
    ttft_mean: float
    tpot_mean: float


class Error(NamedTuple):
    """`ours` against `theirs`; `relative` is how much more ours is, as a share of theirs."""

    name: str
    unit: str
    ours: float
    theirs: float

    @property
    def relative(self) -> float:
        return self.ours / self.theirs - 1 if self.theirs else inf


class CurveError(NamedTuple):
    """The mean absolute difference of two curves at the recorded times, and the peak of each."""

    name: str
    difference: float
    ours_peak: float
    theirs_peak: float


class Against(NamedTuple):
    """A recording, and how far the replay is from it."""

    file: str
    curves: Curves
    errors: list[Error]
    curve_errors: list[CurveError]

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "errors": [one._asdict() | {"relative": one.relative} for one in self.errors],
            "curves": [one._asdict() for one in self.curve_errors],
        }


def read_curves(path: Path) -> Curves:
    """Raises ConfigError for a file that cannot be read, and for a row that is not numbers."""
    times: list[float] = []
    running: list[float] = []
    waiting: list[float] = []
    kv_used: list[float] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                where = f"{path.name}, line {reader.line_num}"
                times.append(_column(row, where, "t", "time"))
                running.append(_column(row, where, "running"))
                waiting.append(_column(row, where, "waiting"))
                if row.get("kv_cache_pct"):
                    kv_used.append(_column(row, where, "kv_cache_pct") / 100)
                elif row.get("kv_cache_usage_perc"):
                    kv_used.append(_column(row, where, "kv_cache_usage_perc"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not times:
        raise ConfigError(f"{path} has no rows: it must hold t, running and waiting")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ConfigError(f"{path}: its times must ascend")
    # Some servers leave the column at 0.
    known = len(kv_used) == len(times) and any(kv_used)
    return Curves(times, running, waiting, kv_used if known else None)


def _column(row: Mapping[str, str | None], where: str, *names: str) -> float:
    name = next((name for name in names if row.get(name)), None)
    if name is None:
        raise ConfigError(f"{where}: there is no {' or '.join(names)}")
    return _number(row[name], where, name)


def _number(value: Any, where: str, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = inf
    if not isfinite(number):
        raise ConfigError(f"{where}: {name} is not a number")
    return number


def read_measured(path: Path) -> Measured:
    """Raises ConfigError for a file that cannot be read, and for a row without these times."""
    queued: list[float] = []
    first: list[float] = []
    last: list[float] = []
    lengths: list[float] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{path.name}, line {number}"
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ConfigError(f"{where} is not an object")
                tokens = row.get("output_toks", row.get("output_tokens"))
                queued.append(_number(row.get("queued_ts"), where, "queued_ts"))
                first.append(_number(row.get("first_token_ts"), where, "first_token_ts"))
                last.append(_number(row.get("last_token_ts"), where, "last_token_ts"))
                lengths.append(_number(tokens, where, "output_toks"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    each = [
        (end - start) / (tokens - 1)
        for start, end, tokens in zip(first, last, lengths, strict=True)
        if tokens > 1
    ]
    if not each:
        raise ConfigError(f"{path} has no request with two tokens")
    waits = [one - asked for asked, one in zip(queued, first, strict=True)]
    return Measured(max(last) - min(queued), median(waits), mean(waits), mean(each))


def compare(plan: Plan, file: str, curves: Curves, measured: Measured | None) -> Against:
    """The recording's times count from its beginning, the replay's from its first request: nothing
    is moved or stretched to fit."""
    return Against(file, curves, _errors(plan, measured), _curve_errors(plan, curves))


def _errors(plan: Plan, measured: Measured | None) -> list[Error]:
    summary = plan.summary
    if measured is None or summary.ttft is None or summary.tpot is None:
        return []
    return [
        Error("makespan", "s", summary.duration, measured.makespan),
        Error("TTFT, median", "s", summary.ttft.p50, measured.ttft_median),
        Error("TTFT, mean", "s", summary.ttft.mean, measured.ttft_mean),
        Error("TPOT, mean", "s", summary.tpot.mean, measured.tpot_mean),
    ]


def _curve_errors(plan: Plan, curves: Curves) -> list[CurveError]:
    steps, blocks = plan.result.steps, plan.memory.num_blocks
    ends = [start + seconds for start, seconds in zip(steps.starts, steps.seconds, strict=True)]

    def at(values: Sequence[float], time: float) -> float:
        """In the step that runs then; 0 in none."""
        i = bisect_right(steps.starts, time) - 1
        return values[i] if i >= 0 and time <= ends[i] else 0.0

    def error(name: str, ours: Sequence[float], theirs: Sequence[float]) -> CurveError:
        off = [abs(at(ours, t) - value) for t, value in zip(curves.times, theirs, strict=True)]
        return CurveError(name, mean(off), max(ours, default=0), max(theirs))

    found = [
        error("running", steps.running, curves.running),
        error("waiting", steps.waiting, curves.waiting),
    ]
    if curves.kv_used is not None:
        used = [1 - available / blocks for available in steps.available]
        found.append(error("KV cache in use", used, curves.kv_used))
    return found
