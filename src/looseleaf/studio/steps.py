"""Which steps an engine made, and when: what tells moments to events, which have none."""

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.studio.frames import Part, StepRun

MAX_STEPS = 16
"""In a delta; where there were more, neighbours are added up."""

_KEPT = 4096

_REQUEST_ID = attrgetter("request_id")


class DoneStep(NamedTuple):
    """A step's beginning and end, and of each of its sequences what is told.

    Numbers in columns: to keep the steps themselves would keep hundreds of tuples of each, and the
    garbage collector would go through them again and again.
    """

    step_id: int
    start: float
    end: float
    request_ids: list[RequestId]
    num_tokens: list[int]
    num_drafts: list[int]
    num_samples: list[int]

    @property
    def counts(self) -> tuple[list[int], list[int], list[int]]:
        return self.num_tokens, self.num_drafts, self.num_samples


class StepTimes:
    """The steps since the last delta, while its events are gone through in order."""

    def __init__(self, done: list[DoneStep], now: float) -> None:
        self.done = done
        self._now = now
        self._next = 0

    def scheduled(self, step_id: int) -> None:
        """The events go on with what was decided after this step was."""
        if self._next < len(self.done) and self.done[self._next].step_id <= step_id:
            self._next += 1

    @property
    def next_start(self) -> float:
        return self.done[self._next].start if self._next < len(self.done) else self._now

    @property
    def last_end(self) -> float:
        return self.done[self._next - 1].end if self._next else self._now


class StepLog:
    """Goes among an engine's observers. Keeps steps, and their requests, until they are taken."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: deque[DoneStep] = deque(maxlen=_KEPT)
        self._seen: dict[RequestId, Request] = {}

    def observe(self, step: Step, result: StepResult) -> None:
        end = self._engine.clock()
        sequences = step.sequences
        request_ids = list(map(_REQUEST_ID, sequences))
        self._done.append(
            DoneStep(
                step.step_id,
                end - sum(seconds for _, seconds in result.durations),
                end,
                request_ids,
                [len(sequence.token_ids) for sequence in sequences],
                [sequence.num_drafts for sequence in sequences],
                [len(sequence.samples) for sequence in sequences],
            )
        )
        # Most were in the step before: those are passed over without a loop.
        for request_id in set(request_ids).difference(self._seen):
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
    first, last = steps[0], steps[-1]
    request_ids, counts = first.request_ids, list(first.counts)
    if len(steps) > 1:
        request_ids, counts = _added_up(steps)
    parts = tuple(
        Part(number, tokens, drafts, samples)
        for request_id, tokens, drafts, samples in zip(request_ids, *counts, strict=True)
        if (number := number_of(request_id)) is not None
    )
    return StepRun(last.step_id, len(steps), first.start, last.end, parts)


def _added_up(steps: list[DoneStep]) -> tuple[list[RequestId], list[list[int]]]:
    ids = steps[0].request_ids
    if all(step.request_ids == ids for step in steps):  # as a rule: columns are added at once
        columns = zip(*(step.counts for step in steps), strict=True)
        return ids, [list(map(sum, zip(*column, strict=True))) for column in columns]
    sums: dict[RequestId, list[int]] = {}
    for step in steps:
        for request_id, *counts in zip(step.request_ids, *step.counts, strict=True):
            before = sums.setdefault(request_id, [0, 0, 0])
            for i, count in enumerate(counts):
                before[i] += count
    return list(sums), [list(column) for column in zip(*sums.values(), strict=True)]
