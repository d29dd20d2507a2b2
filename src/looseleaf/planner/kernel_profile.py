"""A cost model fitted from kernel times that were measured one by one.

Three CSV files, in microseconds, of one device's part of a model (LLMServingSim's profiler):

    *_dense.csv         layer, tokens                     kernels over all tokens of a step
    *_per_sequence.csv  layer, sequences                  kernels over one row of each sequence
    *_attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode
                        one call for a chunk of a prompt after so many stored tokens, and so many
                        sequences that decode, with so many stored each; 0 for none

What lies between measured points is interpolated: linearly in each number.
"""

import csv
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod, sqrt
from pathlib import Path
from typing import ClassVar, NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize

PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""How often each dense kernel runs in a layer; all others run once in a step."""

_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_MICROSECOND = 1e-6


class _Curve(NamedTuple):
    """Seconds by one number, at ascending points."""

    points: list[int]
    seconds: list[float]

    def at(self, x: int) -> float:
        points, seconds = self.points, self.seconds
        if x <= points[0]:
            return seconds[0]
        if x >= points[-1]:
            return seconds[-1] * x / points[-1]
        i = bisect_right(points, x)
        low, high = points[i - 1], points[i]
        return seconds[i - 1] + (seconds[i] - seconds[i - 1]) * (x - low) / (high - low)


class _Grid:
    """Seconds by several numbers, measured at all combinations of some values of each."""

    def __init__(self, table: Mapping[tuple[int, ...], float], where: str) -> None:
        num_axes = len(next(iter(table)))
        self._axes = [sorted({point[i] for point in table}) for i in range(num_axes)]
        if len(table) != prod(map(len, self._axes)):
            missing = next(point for point in product(*self._axes) if point not in table)
            raise ConfigError(f"{where}: there is no row for {missing}: profile it again")
        self._table = table

    def at(self, *point: float) -> float:
        """Below the smallest value of an axis it is that value; beyond the largest, the last step
        goes on."""
        corners: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for axis, x in zip(self._axes, point, strict=True):
            low, high, share = _between(axis, x)
            corners = [
                ((*corner, end), weight * part)
                for corner, weight in corners
                for end, part in ((low, 1 - share), (high, share))
                if part
            ]
        return sum(weight * self._table[corner] for corner, weight in corners)


def _between(axis: Sequence[int], x: float) -> tuple[int, int, float]:
    """The neighbours of `x`, and how far it is on the way from the first to the second."""
    if len(axis) == 1 or x <= axis[0]:
        return axis[0], axis[0], 0.0
    i = min(bisect_right(axis, x), len(axis) - 1)
    low, high = axis[i - 1], axis[i]
    return low, high, (x - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """Seconds of a step from measured kernels, `step_overhead` seconds besides.

    Of sequences that decode with different contexts, the mean counts, and by the share `skew` the
    longest. Several chunks of prompts are taken as one with as many pairs of queries and keys.
    """

    cooling: ClassVar[None] = None  # the same kernel was measured over and over
    request_seconds: ClassVar[float] = 0.0  # not measured

    name: str
    dense: _Curve
    per_sequence: _Curve
    decode: _Grid
    prefill: _Grid
    mixed: _Grid
    num_layers: int
    skew: float = 0.0
    step_overhead: float = 0.0
    known_error: str = (
        "3.1% on average for an attention call between measured points; steps overlap with the "
        "host's work, which is not measured"
    )

    def seconds(self, parts: Sequence[StepPart]) -> float:
        """Of one step over these sequences; 0 for none."""
        return self.seconds_of(summarize(parts)) if parts else 0.0

    def seconds_of(self, step: StepSummary) -> float:
        """Of a step with at least one sequence."""
        return (
            self.dense.at(step.num_tokens)
            + self.per_sequence.at(step.num_rows)
            + self.num_layers * self._attention(step)
            + self.step_overhead
        )

    def _attention(self, step: StepSummary) -> float:
        """Of one layer's call."""
        chunk = _one_chunk(step.chunk, step.pairs)
        num = step.num_decodes
        if not num:
            return self.prefill.at(*chunk)
        known = (*chunk, num) if step.chunk else (num,)
        grid = self.mixed if step.chunk else self.decode
        mean = step.decode_context / num
        seconds = grid.at(*known, mean)
        if self.skew and step.longest_context > mean:
            seconds += self.skew * (grid.at(*known, step.longest_context) - seconds)
        return seconds


def _one_chunk(num_tokens: int, pairs: int) -> tuple[float, float]:
    """The tokens and the stored context of one chunk with so many pairs of query and key: fewer
    tokens where several chunks do not read each other."""
    alone = num_tokens * (num_tokens + 1) / 2
    if pairs < alone:
        return sqrt(2 * pairs), 0.0
    return num_tokens, (pairs - alone) / num_tokens if num_tokens else 0.0


def load_profile(
    path: Path, num_layers: int, *, skew: float = 0.0, step_overhead: float = 0.0
) -> KernelProfile:
    """`path` is what the three files' names begin with, like `profile/RTX4090_llama31-8b_tp1`.

    Raises ConfigError for a file that is missing, a row that is not numbers (with its line), a
    kernel without rows, and for a grid with gaps.
    """
    attention = _attention(Path(f"{path}_attention.csv"))
    dense = _kernels(Path(f"{path}_dense.csv"), "tokens")
    if missing := sorted(PER_LAYER.keys() - dense.keys()):
        raise ConfigError(f"{path}_dense.csv: there are no rows for {', '.join(missing)}")
    where = f"{path}_attention.csv"
    return KernelProfile(
        name=f"kernels of {path.name}",
        dense=_sum({k: (PER_LAYER.get(k, 0) * num_layers or 1, v) for k, v in dense.items()}),
        per_sequence=_sum(
            {k: (1, v) for k, v in _kernels(Path(f"{path}_per_sequence.csv"), "sequences").items()}
        ),
        decode=_Grid({k[2:]: v for k, v in attention.items() if not k[0]}, where),
        prefill=_Grid({k[:2]: v for k, v in attention.items() if not k[2]}, where),
        mixed=_Grid({k: v for k, v in attention.items() if k[0] and k[2]}, where),
        num_layers=num_layers,
        skew=skew,
        step_overhead=step_overhead,
    )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[int], float]]:
    """Of each row the layer, if there is such a column, the numbers of these columns, seconds."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                try:
                    numbers = [int(row[column]) for column in columns]
                    seconds = float(row["time_us"]) * _MICROSECOND
                except (KeyError, TypeError, ValueError):
                    raise ConfigError(
                        f"{path}, line {reader.line_num}: it must hold {', '.join(columns)} and "
                        "time_us"
                    ) from None
                yield row.get("layer") or "", numbers, seconds
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _kernels(path: Path, column: str) -> dict[str, dict[int, float]]:
    """Seconds by kernel and number."""
    found: dict[str, dict[int, float]] = {}
    for layer, (number,), seconds in _rows(path, (column,)):
        found.setdefault(layer, {})[number] = seconds
    if not found:
        raise ConfigError(f"{path} has no rows")
    return found


def _sum(kernels: Mapping[str, tuple[int, Mapping[int, float]]]) -> _Curve:
    """Of kernels that run so often, at the points that all of them have."""
    points = sorted(set.intersection(*(set(curve) for _, curve in kernels.values())))
    totals = [sum(times * curve[x] for times, curve in kernels.values()) for x in points]
    return _Curve(points, totals)


def _attention(path: Path) -> dict[tuple[int, ...], float]:
    """The profiler's grid of powers of two; rows off it are measured to check interpolation."""
    table = {tuple(numbers): seconds for _, numbers, seconds in _rows(path, _ATTENTION)}
    kept = {point: t for point, t in table.items() if all(x & (x - 1) == 0 for x in point)}
    kinds = {(bool(point[0]), bool(point[2])) for point in kept}
    if len(kinds - {(False, False)}) < 3:
        raise ConfigError(f"{path}: there must be rows that decode, that prefill, and that do both")
    return kept
