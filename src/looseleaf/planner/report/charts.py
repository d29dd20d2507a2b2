"""Charts as inline SVG between labels that are text, so that these stay legible at any width.

A plot is drawn in a box of 1000 by 1000 that is stretched to where it stands. Colours are the
names of what they stand for: page.css gives each one for light and one for dark.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from looseleaf.planner.report.series import Bucket

_BOX = 1000.0


class Axis(NamedTuple):
    """`ticks` are places between 0 and 1, and what is written there."""

    place: Callable[[float], float]
    ticks: list[tuple[float, str]]


def linear(low: float, high: float, text: Callable[[float], str], most: int = 6) -> Axis:
    """From `low` to `high`, with at most so many ticks at round numbers."""
    length = (high - low) or 1.0

    def place(value: float) -> float:
        return (value - low) / length

    step = _round_step(length / most)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return Axis(place, [(place(i * step), text(i * step)) for i in range(first, last + 1)])


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least this."""
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def logarithmic(low: float, high: float, text: Callable[[float], str]) -> Axis:
    """Between two different values above 0, with ticks at the powers of ten, and between where
    these are few."""
    first, length = log10(low), log10(high) - log10(low)
    powers = range(floor(first), ceil(log10(high)) + 1)
    factors = (1, 2, 5) if length <= 1.3 else (1, 3) if length <= 2.2 else (1,)

    def place(value: float) -> float:
        return (log10(value) - first) / length if value > 0 else 0.0

    values = [factor * 10.0**power for power in powers for factor in factors]
    return Axis(place, [(place(v), text(v)) for v in values if low <= v <= high * (1 + 1e-9)])


class Mark(NamedTuple):
    """A vertical line at a place of the x axis, with a label."""

    place: float
    label: str


class Shape(NamedTuple):
    """An SVG path in the box. `kind` is a class of page.css: area, band, line or recorded."""

    kind: str
    color: str
    path: str


class Series(NamedTuple):
    """Text for each bucket, which is shown where somebody points at it."""

    name: str
    color: str
    values: list[str]


class Chart(NamedTuple):
    """`pointed` are titles of the buckets that one can point at, `series` what is told of them."""

    name: str
    title: str
    description: str
    x: Axis
    y: Axis
    shapes: list[Shape]
    marks: Sequence[Mark] = ()
    pointed: Sequence[str] = ()
    series: Sequence[Series] = ()
    low: bool = False


def stepped(values: Sequence[float], axis: Axis) -> str:
    """A line that is level in each bucket."""
    return _outline(values, axis)


def area(lower: Sequence[float], upper: Sequence[float], axis: Axis) -> str:
    """Between two lines that are level in each bucket."""
    width = _BOX / len(upper)
    back = "".join(
        f"V{_y(axis, value)}H{_number(i * width)}" for i, value in reversed(list(enumerate(lower)))
    )
    return f"{_outline(upper, axis)}{back}Z"


def band(buckets: Sequence[Bucket], axis: Axis) -> str:
    """Between the extremes of each bucket."""
    return area([b.low for b in buckets], [b.high for b in buckets], axis)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Through points whose places are given, x before y."""
    drawn = [f"{_number(_BOX * x)} {_number(_BOX * (1 - y))}" for x, y in points]
    return f"M{'L'.join(drawn)}" if drawn else ""


def _outline(values: Sequence[float], axis: Axis) -> str:
    width = _BOX / len(values)
    path, last = "", ""
    for i, value in enumerate(values):
        y = _y(axis, value)
        if not path:
            path = f"M0 {y}"
        elif y != last:
            path += f"H{_number(i * width)}V{y}"
        last = y
    return f"{path}H{_number(_BOX)}"


def _y(axis: Axis, value: float) -> str:
    return _number(_BOX * (1 - min(1.0, max(0.0, axis.place(value)))))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def chart(one: Chart) -> str:
    """A plot with its axes. What it shows is told in its description too."""
    name = escape(one.name)
    svg = [
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(one.title)}</title>'
        f'<desc id="{name}-d">{escape(one.description)}</desc>'
    ]
    for place, _ in one.y.ticks:
        y = _number(_BOX * (1 - place))
        svg.append(f'<path class="grid" d="M0 {y}H1000"/>')
    svg += [f'<path class="{s.kind} c-{s.color}" d="{s.path}"/>' for s in one.shapes]
    svg += [f'<path class="mark" d="M{_number(_BOX * m.place)} 0V1000"/>' for m in one.marks]
    svg.append("</svg>")
    y_ticks = "".join(
        f'<span style="bottom:{_percent(place)}">{escape(text)}</span>'
        for place, text in one.y.ticks
    )
    last = len(one.x.ticks) - 1
    x_ticks = "".join(
        f'<span class="{_tick_class(i, last, place)}" style="left:{_percent(place)}">'
        f"{escape(text)}</span>"
        for i, (place, text) in enumerate(one.x.ticks)
    )
    marks = "".join(
        f'<span class="{"left" if mark.place > 0.6 else "right"}" '
        f'style="left:{_percent(mark.place)};bottom:{6 + 18 * i}px">{escape(mark.label)}</span>'
        for i, mark in enumerate(one.marks)
    )
    low = " low" if one.low else ""
    return (
        f'<div class="chart{low}" data-chart="{name}"{_told(one)}>'
        f'<div class="y" aria-hidden="true">{y_ticks}</div>'
        f'<div class="plot">{"".join(svg)}<div class="marks" aria-hidden="true">{marks}</div>'
        f'</div><div class="x" aria-hidden="true">{x_ticks}</div></div>'
    )


def _tick_class(i: int, last: int, place: float) -> str:
    if i == last and place > 0.97:
        return "end"
    return "minor" if i % 2 else "major"


def _told(one: Chart) -> str:
    if not one.series:
        return ""
    told = {
        "x": list(one.pointed),
        "series": [[series.name, series.color, series.values] for series in one.series],
    }
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return f' data-told="{escape(text)}"'


def _percent(place: float) -> str:
    return f"{_number(100 * place)}%"


def legend(items: Iterable[tuple[str, str]]) -> str:
    """Of colours and what they stand for."""
    keys = "".join(f'<li><i class="key c-{color}"></i>{escape(name)}</li>' for color, name in items)
    return f'<ul class="legend">{keys}</ul>'


def bar(parts: Sequence[tuple[str, float]]) -> str:
    """A level bar of shares, in their colours; their numbers stand beside it."""
    drawn, x = "", 0.0
    for color, share in parts:
        width = _number(_BOX * share)
        drawn += f'<rect class="area c-{color}" x="{_number(x)}" width="{width}" height="1000"/>'
        x += _BOX * share
    return (
        '<svg class="bar" viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f"{drawn}</svg>"
    )
