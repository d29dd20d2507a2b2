"""The charts of a replay, from what happened in it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from looseleaf.engine.settings import format_bytes
from looseleaf.planner.amounts import number, seconds, share, short
from looseleaf.planner.plan import Plan
from looseleaf.planner.report import series
from looseleaf.planner.report.charts import (
    Axis,
    Chart,
    Mark,
    Series,
    Shape,
    area,
    band,
    chart,
    legend,
    linear,
    logarithmic,
    polyline,
    stepped,
)
from looseleaf.planner.report.markup import (
    Html,
    details,
    figure,
    table,
)
from looseleaf.planner.report.recorded import Curves
from looseleaf.planner.report.series import Bucket, Span
from looseleaf.planner.summary import first_token_times, output_token_times

TABLE_ROWS = 20
HIT_BUCKETS = 60

KINDS = (
    ("stored", "token states"),
    ("reserved", "reserved: their tokens come later"),
    ("internal", "wasted inside blocks"),
    ("external", "lost to rounding"),
    ("cached", "cached: nobody's, can still be found"),
    ("free", "free"),
)


class Time:
    """A time axis over a replay, in the unit that suits its length."""

    def __init__(self, span: Span) -> None:
        self.span = span
        units = ((5 * 3600, 3600.0, "h"), (600, 60.0, "min"), (0, 1.0, "s"))
        self._unit, self._name = next(
            (unit, name) for least, unit, name in units if span.length >= least
        )
        length = span.length / self._unit
        self.axis = linear(0.0, length or 1.0, lambda value: f"{value:.4g} {self._name}")

    def place(self, time: float) -> float:
        return self.axis.place((time - self.span.start) / self._unit)

    def buckets(self, num: int) -> list[str]:
        """Their titles."""
        edges = [(edge - self.span.start) / self._unit for edge in self.span.edges(num)]
        digits = 1 if edges[-1] >= 20 else 3
        return [
            f"{low:.{digits}f}\u2013{high:.{digits}f} {self._name}" for low, high in pairwise(edges)
        ]


def memory_over_time(plan: Plan, time: Time) -> Html:
    found = series.memory(plan.result, plan.memory.block_size, time.span)
    y = linear(0.0, 1.0, lambda value: f"{100 * value:.0f}%", most=4)
    shapes, told, lower = [], [], [0.0] * series.BUCKETS
    shown = [(kind, name) for kind, name in KINDS if kind == "free" or any(getattr(found, kind))]
    for kind, name in shown:
        values: list[float] = getattr(found, kind)
        upper = [low + value for low, value in zip(lower, values, strict=True)]
        shapes.append(Shape("area", kind, area(lower, upper, y)))
        told.append(Series(name.partition(":")[0], kind, [share(value) for value in values]))
        lower = upper
    size = plan.memory.num_blocks * plan.memory.block_bytes
    text = (
        f"Shares of the KV cache ({format_bytes(size)}, {number(plan.memory.num_tokens)} tokens in "
        f"{number(plan.memory.num_blocks)} blocks), looked at {number(len(plan.result.usage))} "
        "times. Sequences are taken to grow to the length that they have at their end."
    )
    drawn = Chart(
        "memory", "KV cache by kind of use", text, time.axis, y, shapes,
        pointed=time.buckets(series.BUCKETS), series=told[::-1],
    )  # fmt: skip
    rows = _rows(time, [[*map(share, _means(getattr(found, kind)))] for kind, _ in shown])
    names = [name.partition(":")[0] for _, name in shown]
    return figure(
        "KV cache by kind of use",
        text,
        Html(legend(shown)),
        Html(chart(drawn)),
        details("As a table", table("Shares of the KV cache over time", ["time", *names], rows)),
    )


def requests_over_time(plan: Plan, time: Time, recorded: Curves | None) -> Html:
    steps = plan.result.steps
    parts: list[str] = []
    columns: list[list[str]] = []
    names = []
    curves = [
        ("running", steps.running, None if recorded is None else recorded.running),
        ("waiting", steps.waiting, None if recorded is None else recorded.waiting),
    ]
    for name, values, theirs in curves:
        buckets = series.bucketed(series.step_pieces(steps, values), time.span)
        top = max([1.0, *(b.high for b in buckets), *(theirs or ())])
        y = linear(0.0, 1.08 * top, number, most=4)
        parts.append(_line(name, f"Requests {name}", buckets, y, time, number, recorded, theirs))
        columns.append([number(value) for value in _means([b.mean for b in buckets])])
        names.append(name)
    if recorded is not None and recorded.kv_used is not None:
        num = plan.memory.num_blocks
        used = [1 - available / num for available in steps.available]
        buckets = series.bucketed(series.step_pieces(steps, used), time.span)
        y = linear(0.0, 1.0, lambda value: f"{100 * value:.0f}%", most=4)
        title = "KV cache in use"
        parts.append(_line("kv", title, buckets, y, time, share, recorded, recorded.kv_used))
        columns.append([share(value) for value in _means([b.mean for b in buckets])])
        names.append(title)
    text = (
        "Lines are means over time, shades reach from the least to the most of each stretch: no "
        "peak is smoothed away. Waiting requests have arrived and have no place in a step yet, or "
        "were preempted."
    )
    key: list[tuple[str, str]] = []
    if recorded is not None:
        text += " The dashed line is the recording, its times as they are in it."
        key = [("running", "replayed"), ("recorded", "recorded")]
    return figure(
        "Running and waiting",
        text,
        Html(legend(key) if key else ""),
        *map(Html, parts),
        details(
            "As a table",
            table("Means over time", ["time", *names], _rows(time, columns)),
        ),
    )


def _line(
    name: str,
    title: str,
    buckets: Sequence[Bucket],
    y: Axis,
    time: Time,
    text: Callable[[float], str],
    recorded: Curves | None,
    theirs: Sequence[float] | None,
) -> str:
    shapes = [
        Shape("band", name, band(buckets, y)),
        Shape("line", name, stepped([b.mean for b in buckets], y)),
    ]
    told = [
        Series("mean", name, [text(b.mean) for b in buckets]),
        Series("least to most", name, [f"{text(b.low)} to {text(b.high)}" for b in buckets]),
    ]
    peak = max(b.high for b in buckets)
    description = f"{title} over time, at most {text(peak)}."
    if recorded is not None and theirs is not None:
        inside = [
            (time.place(time.span.start + t), min(1.0, y.place(value)))
            for t, value in zip(recorded.times, theirs, strict=True)
            if t <= time.span.length
        ]
        shapes.append(Shape("recorded", "recorded", polyline(inside)))
        told.append(Series("recorded", "recorded", _at_buckets(recorded, theirs, time)))
        description += f" In the recording at most {text(max(theirs))}."
    pointed = time.buckets(len(buckets))
    drawn = Chart(name, title, description, time.axis, y, shapes, (), pointed, told, low=True)
    return f"<h4>{title}</h4>{chart(drawn)}"


def _at_buckets(recorded: Curves, values: Sequence[float], time: Time) -> list[str]:
    """The latest value of each bucket, or of those before."""
    texts, i = [], -1
    for edge in time.span.edges(series.BUCKETS)[1:]:
        while i + 1 < len(values) and recorded.times[i + 1] <= edge - time.span.start:
            i += 1
        texts.append(f"{values[i]:.4g}" if i >= 0 else "\u2013")
    return texts


def latencies(plan: Plan) -> list[Html]:
    outcomes = plan.result.outcomes
    return [
        _distribution(
            "ttft", "Time to first token", first_token_times(outcomes),
            "From a request's arrival to its first token, waiting included.",
        ),
        _distribution(
            "tpot", "Time per output token", output_token_times(outcomes),
            "Between two tokens, on average of each answer that has two.",
        ),
    ]  # fmt: skip


def _distribution(name: str, title: str, values: Sequence[float], text: str) -> Html:
    found = series.distribution(values)
    if found is None:
        return figure(title, f"{text} There is none.")
    least, most = found.quantiles[0], found.quantiles[-1]
    floor = max(least, most / 1e5, 1e-9)
    wide = most / floor > 20
    x = logarithmic(floor, most, short) if wide else linear(0.0, 1.05 * most, short, most=4)
    y = linear(0.0, 1.0, lambda value: f"{100 * value:.0f}%", most=4)
    last = len(found.quantiles) - 1
    points = [(x.place(max(v, floor)), i / last) for i, v in enumerate(found.quantiles)]
    percentiles = [("P50", found.p50), ("P95", found.p95), ("P99", found.p99)]
    marks = [Mark(x.place(max(floor, value)), f"{p} {seconds(value)}") for p, value in percentiles]
    told = ", ".join(f"{p} {seconds(value)}" for p, value in percentiles)
    description = (
        f"{text} The height says what share of {number(len(values))} is at most that: {told}."
    )
    under = [(points[0][0], 0.0), *points, (1.0, 1.0), (1.0, 0.0)]
    shapes = [
        Shape("shade", name, polyline(under) + "Z"),
        Shape("line", name, polyline([(points[0][0], 0.0), *points, (1.0, 1.0)])),
    ]
    rows = [(f"{100 * i / last:.0f}%", seconds(found.quantiles[i])) for i in range(0, last + 1, 10)]
    if wide:
        description += " The scale is logarithmic."
    return figure(
        title,
        description,
        Html(chart(Chart(name, title, description, x, y, shapes, marks))),
        details("As a table", table(title, ["share of requests", "at most"], rows)),
    )


def hit_rate(plan: Plan, time: Time) -> Html:
    """Of the requests that are first scheduled in each stretch of time, and of all up to then."""
    found = series.hits_over_time(plan.result.outcomes, time.span, HIT_BUCKETS)
    most = max((one.hits / one.queries for one in found if one.queries), default=0.0)
    y = linear(0.0, min(1.0, max(0.01, 1.1 * most)), lambda value: f"{100 * value:.3g}%", most=4)
    width = 1 / HIT_BUCKETS
    bars, texts, so_far, points = "", [], [], []
    queries = hits = 0
    for i, one in enumerate(found):
        queries, hits = queries + one.queries, hits + one.hits
        rate = one.hits / one.queries if one.queries else 0.0
        texts.append(share(rate) if one.queries else "nobody")
        so_far.append(share(hits / queries if queries else None))
        if queries:
            points.append(((i + 1) * width, y.place(hits / queries)))
        if one.hits:
            top = y.place(rate)
            corners = [(i + 0.1, 0.0), (i + 0.1, top), (i + 0.9, top), (i + 0.9, 0.0)]
            bars += polyline([(x * width, height) for x, height in corners]) + "Z"
    summary = plan.summary
    text = (
        f"Share of prompt tokens found stored: bars of the requests that began in each of "
        f"{HIT_BUCKETS} stretches of time, the line of all up to then. Blocks of "
        f"{summary.block_size} tokens, a cache of {number(plan.memory.num_tokens)} tokens that "
        f"running requests share, empty at first; {share(summary.hit_rate)} over the whole replay."
    )
    shapes = [Shape("shade", "hits", bars), Shape("line", "hits", polyline(points))]
    pointed = time.buckets(HIT_BUCKETS)
    told = [Series("of those that began then", "hits", texts), Series("so far", "hits", so_far)]
    drawn = Chart(
        "hits", "Prefix hit rate", text, time.axis, y, shapes, (), pointed, told, low=True
    )
    rows = [
        (pointed[i], number(found[i].queries), texts[i], so_far[i])
        for i in range(0, HIT_BUCKETS, HIT_BUCKETS // TABLE_ROWS)
    ]
    headers = ["time", "prompt tokens", "found stored", "so far"]
    return figure(
        "Prefix hit rate",
        text,
        Html(chart(drawn)),
        details("As a table", table("Every third stretch of time", headers, rows)),
    )


def _means(values: Sequence[float]) -> list[float]:
    """Of as many stretches of one length as a table has rows."""
    size = len(values) // TABLE_ROWS
    return [sum(values[i : i + size]) / size for i in range(0, size * TABLE_ROWS, size)]


def _rows(time: Time, columns: Sequence[Sequence[str]]) -> list[list[str]]:
    titles = time.buckets(TABLE_ROWS)
    return [[title, *cells] for title, *cells in zip(titles, *columns, strict=True)]
