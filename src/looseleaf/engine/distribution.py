"""Counts by size, for histograms of what happens thousands of times a second."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Self


class Distribution:
    """Belongs to one thread. `bounds` rise; a value equal to one is counted below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[int]:
        """How many values are at most each bound, and how many there are."""
        return list(accumulate(self.counts))

    def copy(self) -> Self:
        """As it is now, for another thread."""
        other = type(self)(self.bounds)
        other.counts, other.total = self.counts.copy(), self.total
        return other
