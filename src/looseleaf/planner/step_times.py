"""How long steps take, by what is counted of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from looseleaf.core.step import Step
from looseleaf.executors.cost import CostCounter, StepCost


class StepTimes(Protocol):
    """Seconds of steps of some model on some hardware."""

    def seconds(self, step: Step) -> float: ...

    def decoding(self, num_stored: Sequence[int]) -> Iterator[float]:
        """Of the coming steps, without end, in which every sequence computes one token and samples
        from it; `num_stored` tokens each has before the first."""
        ...


class CountedTimes:
    """Implements `StepTimes` by the FLOPs and bytes of a program: `seconds_of` says how long they
    take."""

    def __init__(self, counter: CostCounter, seconds_of: Callable[[StepCost], float]) -> None:
        self._counter = counter
        self._seconds_of = seconds_of

    def seconds(self, step: Step) -> float:
        return self._seconds_of(self._counter.count(step))

    def decoding(self, num_stored: Sequence[int]) -> Iterator[float]:
        return map(self._seconds_of, self._counter.decoding(num_stored))
