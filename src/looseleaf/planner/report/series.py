"""What a replay was over time, in few numbers that hide no peak; and how values are distributed."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, inf
from typing import NamedTuple

from looseleaf.planner.replay import Outcome, Replayed, Steps
from looseleaf.planner.summary import spread

BUCKETS = 300


class Span(NamedTuple):
    """Seconds on the clock of a replay."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start

    def edges(self, num: int) -> list[float]:
        """Of so many buckets of one length: one more than there are buckets."""
        return [self.start + self.length * i / num for i in range(num + 1)]


class Bucket(NamedTuple):
    """Of the values in a stretch of time: their mean, weighted by time, and the extremes."""

    mean: float
    low: float
    high: float


class Piece(NamedTuple):
    """A value from one time to another."""

    start: float
    end: float
    value: float


def step_pieces(steps: Steps, values: Iterable[float]) -> Iterator[Piece]:
    """`values` has one for each step; 0 where no step ran."""
    end = None
    for start, seconds, value in zip(steps.starts, steps.seconds, values, strict=True):
        if end is not None and start > end:
            yield Piece(end, start, 0.0)
        end = start + seconds
        yield Piece(start, end, value)


def held_pieces(times: Sequence[float], values: Iterable[float], end: float) -> Iterator[Piece]:
    """Values that hold from their time to the next one, the last to `end`."""
    ends = [*times[1:], end]
    for start, until, value in zip(times, ends, values, strict=True):
        yield Piece(start, max(start, until), value)


def bucketed(pieces: Iterable[Piece], span: Span, num: int = BUCKETS) -> list[Bucket]:
    """0 where there is no piece."""
    width = span.length / num
    if width <= 0:
        return [Bucket(0.0, 0.0, 0.0)] * num
    sums, lows, highs = [0.0] * num, [inf] * num, [-inf] * num
    for start, end, value in pieces:
        first = max(0, int((start - span.start) / width))
        last = min(num - 1, ceil((end - span.start) / width) - 1)
        for i in range(min(first, num - 1), last + 1):
            begin = span.start + i * width
            sums[i] += value * max(0.0, min(end, begin + width) - max(start, begin))
            lows[i] = min(lows[i], value)
            highs[i] = max(highs[i], value)
    return [
        Bucket(total / width, low, high) if high > -inf else Bucket(0.0, 0.0, 0.0)
        for total, low, high in zip(sums, lows, highs, strict=True)
    ]


def span_of(result: Replayed) -> Span:
    """From the first arrival to the last token."""
    start = min((o.arrival for o in result.outcomes), default=0.0)
    return Span(start, max((o.finished for o in result.outcomes), default=start))


class Memory(NamedTuple):
    """Shares of the pool, of each bucket in the order of time; they add up to 1."""

    stored: list[float]
    reserved: list[float]
    internal: list[float]
    external: list[float]
    cached: list[float]
    free: list[float]


def memory(result: Replayed, block_size: int, span: Span, num: int = BUCKETS) -> Memory:
    """By kind of use, from what was looked at now and then. Blocks that nobody holds but that can
    still be found are cached."""
    times = result.usage_times

    def share(values: Iterable[float]) -> list[float]:
        totals = (value / one.total for value, one in zip(values, result.usage, strict=True))
        return [bucket.mean for bucket in bucketed(held_pieces(times, totals, span.end), span, num)]

    stored = share(one.stored for one in result.usage)
    reserved = share(one.reserved for one in result.usage)
    internal = share(one.internal for one in result.usage)
    external = share(one.external for one in result.usage)
    cached = share(block_size * blocks for blocks in result.cached)
    used = zip(stored, reserved, internal, external, cached, strict=True)
    free = [max(0.0, 1 - sum(shares)) for shares in used]
    return Memory(stored, reserved, internal, external, cached, free)


class Hits(NamedTuple):
    """Prompt tokens of the requests that were first scheduled in a bucket, and how many of them
    were found stored."""

    queries: int
    hits: int


def hits_over_time(outcomes: Iterable[Outcome], span: Span, num: int) -> list[Hits]:
    queries, hits = [0] * num, [0] * num
    for one in outcomes:
        if one.scheduled is None or not one.is_first:
            continue
        place = (one.scheduled - span.start) / span.length if span.length else 0.0
        i = min(num - 1, max(0, int(num * place)))
        queries[i] += one.num_prompt_tokens
        hits[i] += min(one.num_cached_tokens, one.num_prompt_tokens)
    return list(map(Hits, queries, hits))


class Distribution(NamedTuple):
    """`quantiles` are at equal shares from the least to the greatest, the ends included."""

    quantiles: list[float]
    p50: float
    p95: float
    p99: float


def distribution(values: Iterable[float], num: int = 200) -> Distribution | None:
    """None if there are none."""
    ordered = sorted(values)
    found = spread(ordered)
    if found is None:
        return None
    last = len(ordered) - 1
    places = [ordered[round(last * i / num)] for i in range(num + 1)]
    return Distribution(places, found.p50, found.p95, found.p99)
