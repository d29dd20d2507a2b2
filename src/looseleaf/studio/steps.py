"""Which steps an engine made, and when: what tells moments to events, which have none."""

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.studio.frames import Part, StepRun

MAX_STEPS = 32
"""In a delta; where there were more, neighbours are added up."""

_KEPT = 4096

_REQUEST_ID = attrgetter("request_id")

DoneStep: TypeAlias = tuple[Step, float, float]
"""With its beginning and its end."""


class StepTimes:
    """The steps since the last delta, while its events are gone through in order."""

    def __init__(self, done: list[DoneStep], now: float) -> None:
        self.done = done
        self._now = now
        self._next = 0

    def scheduled(self, step_id: int) -> None:
        """The events go on with what was decided after this step was."""
        if self._next < len(self.done) and self.done[self._next][0].step_id <= step_id:
            self._next += 1

    @property
    def next_start(self) -> float:
        return self.done[self._next][1] if self._next < len(self.done) else self._now

    @property
    def last_end(self) -> float:
        return self.done[self._next - 1][2] if self._next else self._now


class StepLog:
    """Goes among an engine's observers. Keeps steps, and their requests, until they are taken."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: deque[DoneStep] = deque(maxlen=_KEPT)
        self._seen: dict[RequestId, Request] = {}

    def observe(self, step: Step, result: StepResult) -> None:
        end = self._engine.clock()
        self._done.append((step, end - sum(seconds for _, seconds in result.durations), end))
        # Most were in the step before: those are passed over without a loop.
        for request_id in set(map(_REQUEST_ID, step.sequences)).difference(self._seen):
            request = self._engine.scheduler.requests.get(request_id)
            if request is not None:
                self._seen[request_id] = request

    def take(self, now: float) -> tuple[StepTimes, dict[RequestId, Request]]:
        """The steps since the last time, and the requests that were in them: some have ended."""
        times, seen = StepTimes(list(self._done), now), self._seen
        self._done.clear()
        self._seen = {}
        return times, seen


def step_runs(done: list[DoneStep], number_of: Callable[[RequestId], int | None]) -> list[StepRun]:
    """At most `MAX_STEPS` of them. Requests without a number are left out."""
    size = -(-len(done) // MAX_STEPS) or 1
    return [_run(done[i : i + size], number_of) for i in range(0, len(done), size)]


def _run(steps: list[DoneStep], number_of: Callable[[RequestId], int | None]) -> StepRun:
    if len(steps) == 1:
        step, start, end = steps[0]
        known = [(number_of(sequence.request_id), sequence) for sequence in step.sequences]
        parts = tuple(
            Part(number, len(sequence.token_ids), sequence.num_drafts, len(sequence.samples))
            for number, sequence in known
            if number is not None
        )
        return StepRun(step.step_id, 1, start, end, parts)
    sums: dict[int, tuple[int, int, int]] = {}
    for step, _, _ in steps:
        for sequence in step.sequences:
            number = number_of(sequence.request_id)
            if number is not None:
                tokens, drafts, samples = sums.get(number, (0, 0, 0))
                sums[number] = (
                    tokens + len(sequence.token_ids),
                    drafts + sequence.num_drafts,
                    samples + len(sequence.samples),
                )
    parts = tuple(Part(number, *counts) for number, counts in sums.items())
    return StepRun(steps[-1][0].step_id, len(steps), steps[0][1], steps[-1][2], parts)
