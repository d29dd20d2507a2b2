"""A sweep as a table: each row a replay, with bars beside what matters most."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from looseleaf.planner.amounts import seconds_text, share

Row = Mapping[str, Any]
"""`settings` by name, and either a `summary` as JSON has it or an `error`."""

WIDTH = 6
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class _Column(NamedTuple):
    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    shown: Callable[[float], str]
    bar: bool = False


def _p95(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda summary: summary[name] and summary[name]["p95"]


def _unfilled(summary: Mapping[str, Any]) -> float | None:
    """Of the slots that are taken."""
    filled: float | None = summary["kv_filled"]
    return None if filled is None else 1 - filled


_COLUMNS = (
    _Column("output/s", lambda s: s["output_tokens_per_second"], "{:.0f}".format, bar=True),
    _Column("ttft p95", _p95("ttft"), seconds_text, bar=True),
    _Column("tpot p95", _p95("tpot"), seconds_text, bar=True),
    _Column("hits", lambda s: s["hit_rate"], share),
    _Column("unfilled", _unfilled, share),
    _Column("preempted", lambda s: s["preemptions"], "{:.0f}".format),
)


def bar(value: float, most: float, width: int = WIDTH) -> str:
    """A share of `width` characters, in eighths of one."""
    eighths = round(8 * width * value / most) if most > 0 else 0
    full, rest = divmod(min(eighths, 8 * width), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def as_text(rows: Sequence[Row]) -> str:
    """Bars are of a column's largest value; throughput is better where they are long, latency where
    they are short."""
    names = list(rows[0]["settings"])
    table = [[*names, *(column.title for column in _COLUMNS)]]
    most = {
        column.title: max((_value(column, row) or 0.0 for row in rows), default=0.0)
        for column in _COLUMNS
    }
    for row in rows:
        cells = [str(row["settings"][name]) for name in names]
        for column in _COLUMNS:
            value = _value(column, row)
            shown = "-" if value is None else column.shown(value)
            if column.bar:
                shown = f"{shown} {bar(value or 0.0, most[column.title])}"
            cells.append(shown)
        table.append(cells)
    lines = _aligned(table, len(names))
    for row in rows:
        if "error" in row:
            lines.append(f"{_named(row)}: {row['error']}")
    return "\n".join([*lines, *_warnings(rows)])


def _warnings(rows: Sequence[Row]) -> list[str]:
    """Those of all rows once."""
    played = [row for row in rows if "summary" in row]
    times = Counter(warning for row in played for warning in row["warnings"])
    found = [f"warning: {warning}" for warning, count in times.items() if count == len(played)]
    for row in played:
        found += [
            f"warning: {_named(row)}: {warning}"
            for warning in row["warnings"]
            if times[warning] < len(played)
        ]
    return found


def _value(column: _Column, row: Row) -> float | None:
    return column.value(row["summary"]) if "summary" in row else None


def _named(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row["settings"].items())


def _aligned(table: Sequence[Sequence[str]], num_names: int) -> list[str]:
    """Titles of columns with bars stand over their numbers."""
    heads = [
        title + " " * (WIDTH + 1) if column.bar else title
        for title, column in zip(table[0][num_names:], _COLUMNS, strict=True)
    ]
    rows = [[*table[0][:num_names], *heads], *table[1:]]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
