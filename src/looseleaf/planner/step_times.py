"""How long steps take, by what is counted of them."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from looseleaf.core.request import RequestId
from looseleaf.core.step import Step
from looseleaf.planner.cost_model import Roofline, StepPart
from looseleaf.planner.shape_work import ShapeCounter


class StepTimes(Protocol):
    """Seconds of steps of some model on some hardware."""

    def seconds(self, step: Step) -> float: ...

    def decoding(
        self, num_stored: Sequence[int], names: Sequence[RequestId] = ()
    ) -> Iterator[float]:
        """Of the coming steps, without end, in which every sequence computes one token and samples
        from it; `num_stored` tokens each has before the first. Their `names` are for who looks at
        what they share."""
        ...


class ShapeTimes:
    """Implements `StepTimes` by the FLOPs and bytes that follow from a model's shape."""

    def __init__(self, counter: ShapeCounter, model: Roofline) -> None:
        self._counter = counter
        self._model = model

    def seconds(self, step: Step) -> float:
        return self._model.seconds_of(self._counter.count(_parts(step)))

    def decoding(
        self, num_stored: Sequence[int], names: Sequence[RequestId] = ()
    ) -> Iterator[float]:
        return map(self._model.seconds_of, self._counter.decoding(num_stored))


def _parts(step: Step) -> list[StepPart]:
    return [StepPart(len(s.token_ids), s.first_position) for s in step.sequences]
