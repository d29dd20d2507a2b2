"""Limits on latency, and whether a replay keeps them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.core.request import FinishReason
from looseleaf.planner.amounts import seconds_text, share
from looseleaf.planner.replay import Outcome
from looseleaf.planner.summary import quantile

DEFAULT_SHARE = 0.95

METRICS = ("ttft", "tpot", "e2e")

_MOST_SECONDS = 1e9

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}


class Limit(NamedTuple):
    """`share` of the requests must take at most so many seconds, by `metric`."""

    metric: str
    seconds: float
    share: float = DEFAULT_SHARE

    @property
    def name(self) -> str:
        return f"{self.metric} p{100 * self.share:g}"


class Measured(NamedTuple):
    """`value` is in seconds, None where no request has one."""

    limit: Limit
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is None or self.value <= self.limit.seconds

    def as_json(self) -> dict[str, Any]:
        return {**self.limit._asdict(), "value": self.value, "met": self.met}


@dataclass(frozen=True, slots=True)
class Slo:
    """As serving papers and benchmarks have it: a limit on the time to first token, one on the mean
    time between tokens of an answer (or on the whole), each of which a share of the requests must
    keep. Whether one request keeps all limits is its own question: see `attainment`."""

    limits: tuple[Limit, ...]

    def measured(self, outcomes: Sequence[Outcome]) -> tuple[Measured, ...]:
        """Of those that were not given up."""
        return tuple(
            Measured(limit, _value(limit, map(_TIMES[limit.metric], _complete(outcomes))))
            for limit in self.limits
        )

    def attainment(self, outcomes: Sequence[Outcome]) -> float:
        """The share of requests that keep every limit: goodput is so much of the rate. 1 if there
        are none."""
        complete = _complete(outcomes)
        return sum(map(self.keeps, complete)) / len(complete) if complete else 1.0

    def keeps(self, outcome: Outcome) -> bool:
        return not any(exceeds(limit, outcome) for limit in self.limits)

    def __str__(self) -> str:
        return ", ".join(f"{one.name} <= {one.seconds:g} s" for one in self.limits)

    def as_json(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        return {
            "limits": [one.as_json() for one in self.measured(outcomes)],
            "attainment": self.attainment(outcomes),
        }


def exceeds(limit: Limit, outcome: Outcome) -> bool:
    value = _TIMES[limit.metric](outcome)
    return value is not None and value > limit.seconds


def parse_slo(text: str) -> Slo:
    """Like `ttft=1s,tpot=50ms,ttft_p=0.9`; raises ConfigError."""
    seconds: dict[str, float] = {}
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        metric = name.removesuffix("_p")
        if metric not in METRICS or not value:
            raise ConfigError(
                f"{part.strip()[:40]!r} is no limit: write {', '.join(f'{m}=1s' for m in METRICS)} "
                f"or the share of requests that must keep one, like ttft_p=0.95"
            )
        if metric in (seconds if name == metric else shares):
            raise ConfigError(f"{name} is there twice: say it once")
        if name == metric:
            seconds[metric] = _seconds(name, value)
        else:
            shares[metric] = _share(name, value)
    if spare := [metric for metric in shares if metric not in seconds]:
        raise ConfigError(f"{spare[0]}_p is the share for a limit that is not there: {spare[0]}")
    return Slo(tuple(Limit(m, seconds[m], shares.get(m, DEFAULT_SHARE)) for m in seconds))


def _seconds(name: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) *(us|ms|s|min|)", text)
    seconds = 0.0 if match is None else float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigError(
            f"{name} is {text[:40]!r}, but it must be a time of at most {_MOST_SECONDS:g} s, like "
            "1.5s or 50ms"
        )
    return seconds


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{name} is {text[:40]!r}, but it must be above 0 and at most 1")
    return share


def as_lines(found: Mapping[str, Any]) -> list[str]:
    """`Slo.as_json` for people."""
    lines = []
    for one in found["limits"]:
        value = "-" if one["value"] is None else seconds_text(one["value"])
        lines.append(
            f"limit     {one['metric']} p{100 * one['share']:g} {value}, at most "
            f"{seconds_text(one['seconds'])}: {'kept' if one['met'] else 'NOT kept'}"
        )
    return [*lines, f"          {share(found['attainment'])} of the requests keep all limits"]


def _complete(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if one.reason is not FinishReason.ABORT]


def _value(limit: Limit, times: Iterable[float | None]) -> float | None:
    ordered = sorted(time for time in times if time is not None)
    return quantile(ordered, limit.share) if ordered else None


def _ttft(outcome: Outcome) -> float | None:
    return None if outcome.first_token is None else outcome.first_token - outcome.arrival


def _tpot(outcome: Outcome) -> float | None:
    if outcome.first_token is None or outcome.num_output_tokens < 2:
        return None
    return (outcome.finished - outcome.first_token) / (outcome.num_output_tokens - 1)


def _e2e(outcome: Outcome) -> float | None:
    return outcome.finished - outcome.arrival


_TIMES: dict[str, Callable[[Outcome], float | None]] = {"ttft": _ttft, "tpot": _tpot, "e2e": _e2e}
