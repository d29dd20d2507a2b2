"""Numbers drawn at random: lengths, pauses, turns."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log, log1p, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

from looseleaf.core.errors import ConfigError

_STEPS = 4096
_NORMAL = NormalDist()


class Distribution(Protocol):
    def at(self, share: float) -> float:
        """The value that a `share` of all, from 0 to below 1, is not above."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: float

    def at(self, share: float) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    low: float
    high: float

    def at(self, share: float) -> float:
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True, slots=True)
class Exponential:
    mean: float

    def at(self, share: float) -> float:
        return -self.mean * log1p(-share)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """`sigma` is that of the logarithm."""

    median: float
    sigma: float

    @classmethod
    def of_mean(cls, mean: float, cv: float) -> "LogNormal":
        """`cv` is the standard deviation over the mean."""
        variance = log1p(cv * cv)
        return cls(mean * exp(-variance / 2), sqrt(variance))

    @classmethod
    def of_p95(cls, median: float, p95: float) -> "LogNormal":
        return cls(median, log(p95 / median) / _NORMAL.inv_cdf(0.95))

    def at(self, share: float) -> float:
        if share <= 0:
            return 0.0
        return self.median * exp(self.sigma * _NORMAL.inv_cdf(share))


@dataclass(frozen=True, slots=True)
class Cdf:
    """Values with the share of all that is not above them, both rising, the last share 1. Between
    two of them it is a straight line, and so from 0 to the first."""

    values: Sequence[float]
    shares: Sequence[float]

    def at(self, share: float) -> float:
        place = bisect_left(self.shares, share)
        below, low = (self.shares[place - 1], self.values[place - 1]) if place else (0.0, 0.0)
        rise = self.shares[place] - below
        part = (share - below) / rise if rise else 1.0
        return low + part * (self.values[place] - low)


@dataclass(frozen=True, slots=True)
class Bounded:
    """What is beyond the bounds becomes the bound."""

    inner: Distribution
    least: float = 0.0
    most: float = inf

    def at(self, share: float) -> float:
        return min(self.most, max(self.least, self.inner.at(share)))


def whole(distribution: Distribution, share: float, least: int = 1) -> int:
    """The whole number nearest to the value, and not below `least`."""
    return max(least, round(distribution.at(share)))


def mean_whole(distribution: Distribution, least: int = 1) -> float:
    """Of `whole` over all shares."""
    return sum(whole(distribution, (i + 0.5) / _STEPS, least) for i in range(_STEPS)) / _STEPS


def read_cdf(path: Path) -> Cdf:
    """From JSON like [[64, 0.1], [512, 1.0]], or an object whose `cdf` is that. Raises ConfigError
    for what is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON") from None
    return cdf_of(found.get("cdf") if isinstance(found, dict) else found, str(path))


def cdf_of(points: Any, where: str) -> Cdf:
    """Raises ConfigError, which begins with `where`, for points that are no CDF."""
    if not isinstance(points, list) or not points or not all(map(_is_point, points)):
        raise ConfigError(
            f"{where} is no CDF: it must be pairs of a value and the share of all that is not "
            "above it, like [[64, 0.1], [512, 1.0]]"
        )
    values, shares = [float(p[0]) for p in points], [float(p[1]) for p in points]
    for name, row in (("value", values), ("share", shares)):
        for before, after in pairwise(row):
            if after < before:
                raise ConfigError(f"{where}: {name} {after:g} comes after {before:g}: sort by it")
    if abs(shares[-1] - 1) > 1e-6:
        raise ConfigError(f"{where}: its last share is {shares[-1]:g}, but it must be 1")
    shares[-1] = 1.0
    return Cdf(tuple(values), tuple(shares))


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(one) in (int, float) and 0 <= one < 1e12 for one in point)
        and point[1] <= 1 + 1e-6
    )
