"""A figure as a grid: what the paper printed, beside what came out here."""

from collections.abc import Iterator
from typing import Any, NamedTuple

Published = float | tuple[float, float] | None
"""One number, a range, or nothing that is printed as a number."""


class Cell(NamedTuple):
    paper: Published
    ours: float | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, or less the nearer end of its range; 0 inside it."""
        if self.paper is None or self.ours is None:
            return None
        if isinstance(self.paper, tuple):
            low, high = self.paper
            return self.ours - min(max(self.ours, low), high)
        return self.ours - self.paper


class Row(NamedTuple):
    label: str
    cells: tuple[Cell, ...]


class Figure(NamedTuple):
    """`tolerance` is how far a cell may be from the paper's, in its own unit, or as a share of it
    where `relative`; `reason` explains those that are further away, in a sentence."""

    number: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    tolerance: float | None = None
    relative: bool = False
    reason: str = ""
    notes: tuple[str, ...] = ()
    digits: int = 2

    def misses(self) -> Iterator[tuple[str, str, Cell]]:
        """Row and column of the cells that are further away than `tolerance`."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if self._is_miss(cell):
                    yield row.label, column, cell

    def _is_miss(self, cell: Cell) -> bool:
        if self.tolerance is None or cell.difference is None:
            return False
        allowed = self.tolerance
        if self.relative:
            assert cell.paper is not None
            allowed *= max(cell.paper) if isinstance(cell.paper, tuple) else cell.paper
        return abs(cell.difference) > allowed + 1e-9


def as_json(figure: Figure) -> dict[str, Any]:
    return {
        "figure": figure.number,
        "title": figure.title,
        "rows": [
            {
                "label": row.label,
                "cells": {
                    column: {"paper": c.paper, "ours": c.ours, "difference": c.difference}
                    for column, c in zip(figure.columns, row.cells, strict=True)
                },
            }
            for row in figure.rows
        ],
        "tolerance": figure.tolerance,
        "tolerance_is_relative": figure.relative,
        "misses": [f"{row}: {column}" for row, column, _ in figure.misses()],
        "reason": figure.reason if any(figure.misses()) else "",
        "notes": list(figure.notes),
    }


def as_text(figure: Figure) -> str:
    cells = [[_cell(cell, figure.digits) for cell in row.cells] for row in figure.rows]
    first = max(len(row.label) for row in figure.rows)
    widths = [
        max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(figure.columns)
    ]
    lines = [
        f"{figure.number}: {figure.title}",
        " " * first + "".join(f"   {c:>{w}}" for c, w in zip(figure.columns, widths, strict=True)),
    ]
    for row, shown in zip(figure.rows, cells, strict=True):
        line = "".join(f"   {c:>{w}}" for c, w in zip(shown, widths, strict=True))
        lines.append(f"{row.label:{first}}{line}".rstrip())
    misses = list(figure.misses())
    if figure.tolerance is not None:
        allowed = f"{figure.tolerance:.0%}" if figure.relative else f"{figure.tolerance:g}"
        known = sum(c.difference is not None for row in figure.rows for c in row.cells)
        lines.append(f"within {allowed} of the paper's: {known - len(misses)} of {known}")
    for row_label, column, cell in misses:
        assert cell.difference is not None
        lines.append(f"  off by {cell.difference:+.{figure.digits}f}: {row_label}, {column}")
    if misses and figure.reason:
        lines.append(f"  because {figure.reason}")
    lines += [f"  {note}" for note in figure.notes]
    return "\n".join(lines)


def _cell(cell: Cell, digits: int) -> str:
    ours = "-" if cell.ours is None else f"{cell.ours:,.{digits}f}"
    if cell.paper is None:
        return ours
    if isinstance(cell.paper, tuple):
        low, high = cell.paper
        return f"{low:g}..{high:g} | {ours}"
    return f"{cell.paper:,.{digits}f} | {ours}"
