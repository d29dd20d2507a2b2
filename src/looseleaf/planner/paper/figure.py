"""A figure as a grid: what the paper printed, beside what came out here."""

import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

Published = float | tuple[float, float] | None
"""One number, a range, or nothing that is printed as a number."""


WIDTH = 100
"""Of lines of text, in characters."""


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
    where `relative`; `reason` says why some are further away, and `tested` what comes out here when
    a cause is varied."""

    number: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    tolerance: float | None = None
    relative: bool = False
    reason: str = ""
    tested: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    digits: int = 2

    def compared(self) -> Iterator[tuple[str, str, Cell]]:
        """Row and column of the cells that the paper has too."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell.difference is not None:
                    yield row.label, column, cell

    def misses(self) -> Iterator[tuple[str, str, Cell]]:
        """Those that are further away than `tolerance`."""
        return (found for found in self.compared() if not self.is_near(found[2]))

    def is_near(self, cell: Cell) -> bool:
        if self.tolerance is None or cell.difference is None:
            return True
        allowed = self.tolerance
        if self.relative:
            assert cell.paper is not None
            allowed *= max(cell.paper) if isinstance(cell.paper, tuple) else cell.paper
        return abs(cell.difference) <= allowed + 1e-9


def as_json(figure: Figure) -> dict[str, Any]:
    return {
        "figure": figure.number,
        "title": figure.title,
        "rows": [
            {
                "label": row.label,
                "cells": {
                    column: {
                        "paper": c.paper,
                        "ours": c.ours,
                        "difference": c.difference,
                        "in_range": None if c.difference is None else figure.is_near(c),
                    }
                    for column, c in zip(figure.columns, row.cells, strict=True)
                },
            }
            for row in figure.rows
        ],
        "tolerance": figure.tolerance,
        "tolerance_is_relative": figure.relative,
        "misses": [f"{row}: {column}" for row, column, _ in figure.misses()],
        "reason": figure.reason if any(figure.misses()) else "",
        "tested": list(figure.tested),
        "notes": list(figure.notes),
    }


def as_text(figure: Figure) -> str:
    """What the paper has too, one number a line; then all of ours, if there is more; then why."""
    lines = [f"{figure.number}: {figure.title}"]
    compared = list(figure.compared())
    if compared:
        lines += _comparison(figure, compared)
    if len(compared) < sum(cell.ours is not None for row in figure.rows for cell in row.cells):
        lines += _grid(figure)
    if any(figure.misses()):
        lines += _wrapped("why: ", figure.reason)
    for text in figure.tested:
        lines += _wrapped("tested: ", text)
    for text in figure.notes:
        lines += _wrapped("", text)
    return "\n".join(lines)


def _comparison(figure: Figure, compared: list[tuple[str, str, Cell]]) -> list[str]:
    names = [f"{row}: {column}" for row, column, _ in compared]
    width = max(map(len, names))
    allowed = ""
    if figure.tolerance:
        allowed = f" (±{figure.tolerance:{'.0%' if figure.relative else 'g'}})"
    lines = [f"  {'':{width}}{'paper':>14}{'here':>12}{'difference':>12}   in range{allowed}"]
    for name, (_, _, cell) in zip(names, compared, strict=True):
        assert cell.difference is not None
        assert cell.ours is not None
        lines.append(
            f"  {name:{width}}{_published(cell.paper, figure.digits):>14}"
            f"{cell.ours:>12,.{figure.digits}f}{cell.difference:>+12,.{figure.digits}f}"
            f"   {'yes' if figure.is_near(cell) else 'NO'}"
        )
    return lines


def _grid(figure: Figure) -> list[str]:
    first = max(len(row.label) for row in figure.rows)
    cells = [
        ["-" if c.ours is None else f"{c.ours:,.{figure.digits}f}" for c in row.cells]
        for row in figure.rows
    ]
    widths = [
        max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(figure.columns)
    ]
    head = "".join(f"   {c:>{w}}" for c, w in zip(figure.columns, widths, strict=True))
    lines = [f"  {'here':{first}}{head}"]
    for row, shown in zip(figure.rows, cells, strict=True):
        line = "".join(f"   {c:>{w}}" for c, w in zip(shown, widths, strict=True))
        lines.append(f"  {row.label:{first}}{line}")
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        head + text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _published(paper: Published, digits: int) -> str:
    if isinstance(paper, tuple):
        return f"{paper[0]:g} to {paper[1]:g}"
    return f"{paper:,.{digits}f}"
