"""Times of steps by models that look at what a step's sequences are together."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from looseleaf.core.request import RequestId
from looseleaf.core.step import Step
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.planner.shared_reads import SharedReads


class SummaryModel(Protocol):
    def seconds_of(self, step: StepSummary) -> float:
        """Of a step with at least one sequence."""
        ...


class SummaryTimes:
    """Implements `StepTimes`. With `rows_that_draw`, logits are computed for sequences alone that
    draw a token, as here; without, for all, as vLLM does. What sequences share is looked at only
    where `shared` is given; see `for_replay`."""

    def __init__(
        self, model: SummaryModel, *, rows_that_draw: bool, shared: SharedReads | None = None
    ) -> None:
        self._model = model
        self._rows_that_draw = rows_that_draw
        self._shared = shared

    def for_replay(self, block_size: int) -> "SummaryTimes":
        """One that looks at what sequences share, for the steps of a single engine."""
        return SummaryTimes(
            self._model, rows_that_draw=self._rows_that_draw, shared=SharedReads(block_size)
        )

    def seconds(self, step: Step) -> float:
        summary = step_summary(step, rows_that_draw=self._rows_that_draw, shared=self._shared)
        return self._model.seconds_of(summary)

    def decoding(
        self, num_stored: Sequence[int], names: Sequence[RequestId] = ()
    ) -> Iterator[float]:
        num = len(num_stored)
        context, longest = sum(num_stored), max(num_stored, default=0)
        shared = 0
        if self._shared is not None and names:
            shared = self._shared.decoding(names, num_stored)
        while True:
            context += num
            longest += 1
            yield self._model.seconds_of(StepSummary(num, num, context, longest, 0, 0, 0, shared))


def step_summary(
    step: Step, *, rows_that_draw: bool, shared: SharedReads | None = None
) -> StepSummary:
    """`shared` must have seen the steps before."""
    parts = [StepPart(len(one.token_ids), one.first_position) for one in step.sequences]
    summary = summarize(parts)
    if rows_that_draw:
        summary = summary._replace(num_rows=sum(bool(one.samples) for one in step.sequences))
    return summary if shared is None else summary._replace(shared_context=shared.step(step))
