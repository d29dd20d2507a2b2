"""What each request does when: wait, have its prompt computed, be answered, be preempted."""

from math import inf
from typing import NamedTuple

from looseleaf.core.request import RequestId
from looseleaf.core.step import Step, StepResult
from looseleaf.planner.replay import Outcome, Replay


class Phase(NamedTuple):
    """`name` is queue, prefill, decode, preempted, or recompute."""

    name: str
    start: float
    end: float


_ORDER = ("queue", "prefill", "decode", "preempted", "recompute")
"""Of phases that begin at the same time."""


class _Preemption:
    """A request lost its place with step `lost`, came back with step `back`, and had all that it
    had had at the time `done`."""

    __slots__ = ("back", "done", "lost")

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.back: int | None = None
        self.done = inf


class PhaseWatch:
    """Notes when requests of a replay are preempted and when they come back. Nobody is, in runs of
    decoding, so the engine's own steps tell all of it."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._scheduler = replay.engine.scheduler
        self._num_preemptions = 0
        self._known: dict[RequestId, int] = {}
        self._found: dict[RequestId, list[_Preemption]] = {}
        self._away: dict[RequestId, _Preemption] = {}
        replay.engine.observers.append(self._observe)

    def _observe(self, step: Step, _: StepResult) -> None:
        number = len(self._replay.result.steps)
        if self._scheduler.counters.preemptions != self._num_preemptions:
            self._num_preemptions = self._scheduler.counters.preemptions
            self._note(number)
        if not self._away:
            return
        for sequence in step.sequences:
            preemption = self._away.get(sequence.request_id)
            if preemption is None:
                continue
            if preemption.back is None:
                preemption.back = number
            if sequence.samples:
                preemption.done = self._replay.clock.now
                del self._away[sequence.request_id]

    def _note(self, number: int) -> None:
        for request in self._scheduler.waiting:
            known = self._known.get(request.request_id, 0)
            if request.num_preemptions > known:
                self._known[request.request_id] = request.num_preemptions
                preemption = self._away[request.request_id] = _Preemption(number)
                self._found.setdefault(request.request_id, []).append(preemption)

    def phases(self, outcome: Outcome) -> list[Phase]:
        """Of a request that has ended, one after the other, from its arrival to its end."""
        starts = self._replay.result.steps.starts
        marks = [(outcome.arrival, "queue")]
        if outcome.scheduled is not None:
            marks.append((outcome.scheduled, "prefill"))
        if outcome.first_token is not None:
            marks.append((outcome.first_token, "decode"))
        for preemption in self._found.get(outcome.request_id, ()):
            marks.append((starts[preemption.lost], "preempted"))
            if preemption.back is not None:
                marks.append((starts[preemption.back], "recompute"))
            marks.append((preemption.done, "decode"))
        marks = [mark for mark in marks if mark[0] <= outcome.finished]
        marks.sort(key=lambda mark: (mark[0], _ORDER.index(mark[1])))
        ends = [start for start, _ in marks[1:]] + [outcome.finished]
        return [
            Phase(name, start, end)
            for (start, name), end in zip(marks, ends, strict=True)
            if end > start
        ]
