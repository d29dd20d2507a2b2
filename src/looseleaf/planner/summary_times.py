"""Times of steps by models that look at what a step's sequences are together."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from looseleaf.core.request import RequestId
from looseleaf.core.step import Step
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.cooling import Caches, Cooling
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.planner.shared_reads import SharedReads


class SummaryModel(Protocol):
    @property
    def cooling(self) -> Cooling | None:
        """With None, times do not depend on the steps before."""
        ...

    @property
    def request_seconds(self) -> float:
        """That each request takes besides its steps."""
        ...

    def seconds_of(self, step: StepSummary) -> float:
        """Of a step with at least one sequence."""
        ...


class SummaryTimes:
    """Implements `StepTimes`. With `rows_that_draw`, logits are computed for sequences alone that
    draw a token, as here; without, for all, as vLLM does. What sequences share, and what came
    before a step, is looked at only by what `for_replay` returns."""

    def __init__(self, model: SummaryModel, *, rows_that_draw: bool) -> None:
        self._model = model
        self._rows_that_draw = rows_that_draw
        self._shared: SharedReads | None = None
        self._past: _Past | None = None
        self.request_seconds = model.request_seconds

    def for_replay(self, block_size: int, clock: VirtualClock) -> "SummaryTimes":
        """For the steps of a single engine, each of which begins when it is asked for."""
        times = SummaryTimes(self._model, rows_that_draw=self._rows_that_draw)
        times._shared = SharedReads(block_size)
        if self._model.cooling is not None:
            times._past = _Past(self._model.cooling, clock)
        return times

    def seconds(self, step: Step) -> float:
        return self._seconds_of(
            step_summary(step, rows_that_draw=self._rows_that_draw, shared=self._shared)
        )

    def _seconds_of(self, summary: StepSummary) -> float:
        if self._past is None:
            return self._model.seconds_of(summary)
        return self._past.seconds_of(summary, self._model)

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
            yield self._seconds_of(StepSummary(num, num, context, longest, 0, 0, 0, shared))


class _Past:
    """Of one engine's steps: what it left in the caches, and when the last one ended."""

    def __init__(self, cooling: Cooling, clock: VirtualClock) -> None:
        self._caches = Caches(cooling)
        self._clock = clock
        self._end = -math.inf

    def seconds_of(self, summary: StepSummary, model: SummaryModel) -> float:
        """Of the step that begins now."""
        now, caches = self._clock.now, self._caches
        idle = max(0.0, now - self._end)
        caches.rest(idle)
        seconds = model.seconds_of(summary._replace(idle=idle, cold=caches.cold))
        caches.step(seconds)
        self._end = now + seconds
        return seconds


def step_summary(
    step: Step, *, rows_that_draw: bool, shared: SharedReads | None = None
) -> StepSummary:
    """`shared` must have seen the steps before."""
    parts = [StepPart(len(one.token_ids), one.first_position) for one in step.sequences]
    summary = summarize(parts)
    if rows_that_draw:
        summary = summary._replace(num_rows=sum(bool(one.samples) for one in step.sequences))
    return summary if shared is None else summary._replace(shared_context=shared.step(step))
