"""Times of steps by models that look at what a step's sequences are together."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from looseleaf.core.step import Step
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize


class SummaryModel(Protocol):
    def seconds_of(self, step: StepSummary) -> float:
        """Of a step with at least one sequence."""
        ...


class SummaryTimes:
    """Implements `StepTimes`. With `rows_that_draw`, logits are computed for sequences alone that
    draw a token, as here; without, for all, as vLLM does."""

    def __init__(self, model: SummaryModel, *, rows_that_draw: bool) -> None:
        self._model = model
        self._rows_that_draw = rows_that_draw

    def seconds(self, step: Step) -> float:
        return self._model.seconds_of(step_summary(step, rows_that_draw=self._rows_that_draw))

    def decoding(self, num_stored: Sequence[int]) -> Iterator[float]:
        num = len(num_stored)
        context, longest = sum(num_stored), max(num_stored, default=0)
        while True:
            context += num
            longest += 1
            yield self._model.seconds_of(StepSummary(num, num, context, longest, 0, 0))


def step_summary(step: Step, *, rows_that_draw: bool) -> StepSummary:
    parts = [StepPart(len(one.token_ids), one.first_position) for one in step.sequences]
    summary = summarize(parts)
    if not rows_that_draw:
        return summary
    return summary._replace(num_rows=sum(bool(one.samples) for one in step.sequences))
