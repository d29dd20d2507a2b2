"""Timing calls that time themselves."""

from collections.abc import Callable
from statistics import median

Timed = Callable[[int], float]
"""Runs something that many times and returns the seconds of one time."""

TARGET_SECONDS = 0.05
"""Long enough for a clock, short enough that disturbances hit few of the rounds."""

MAX_REPEATS = 10_000


def repeats_for(run: Timed) -> int:
    """How often to run it to fill `TARGET_SECONDS`. Warms up on the way."""
    seconds = run(1)
    if seconds < TARGET_SECONDS:
        seconds = run(3)
    return max(1, min(MAX_REPEATS, round(TARGET_SECONDS / max(seconds, 1e-9))))


def median_seconds(run: Timed, rounds: int) -> float:
    repeats = repeats_for(run)
    return median(run(repeats) for _ in range(rounds))


def alternating_seconds(first: Timed, second: Timed, rounds: int) -> tuple[float, float]:
    """The medians of both, measured in turns, so that what slows the machine down for a while
    slows down both."""
    repeats = max(1, (repeats_for(first) + repeats_for(second)) // 2)
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds):
        order = ((first, times[0]), (second, times[1]))
        for run, seconds in order if index % 2 == 0 else reversed(order):
            seconds.append(run(repeats))
    return median(times[0]), median(times[1])
