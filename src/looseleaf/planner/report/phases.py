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


class _Preemption:
    """A request lost its place at `start`, came back at `back` and had all it had at `done`."""

    __slots__ = ("back", "done", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.back = self.done = inf


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
        start, end = self._start(), self._replay.clock.now
        if self._scheduler.counters.preemptions != self._num_preemptions:
            self._num_preemptions = self._scheduler.counters.preemptions
            self._note(start)
        if not self._away:
            return
        for sequence in step.sequences:
            preemption = self._away.get(sequence.request_id)
            if preemption is None:
                continue
            if preemption.back == inf:
                preemption.back = start
            if sequence.samples:
                preemption.done = end
                del self._away[sequence.request_id]

    def _start(self) -> float:
        """Of the step that has just been computed. Where somebody can be preempted or is away, it
        follows on the last one at once."""
        steps = self._replay.result.steps
        return steps.starts[-1] + steps.seconds[-1] if len(steps) else 0.0

    def _note(self, start: float) -> None:
        for request in self._scheduler.waiting:
            known = self._known.get(request.request_id, 0)
            if request.num_preemptions > known:
                self._known[request.request_id] = request.num_preemptions
                preemption = self._away[request.request_id] = _Preemption(start)
                self._found.setdefault(request.request_id, []).append(preemption)

    def phases(self, outcome: Outcome) -> list[Phase]:
        """Of a request that has ended, one after the other, from its arrival to its end."""
        marks = [(outcome.arrival, "queue")]
        if outcome.scheduled is not None:
            marks.append((outcome.scheduled, "prefill"))
        if outcome.first_token is not None:
            marks.append((outcome.first_token, "decode"))
        for preemption in self._found.get(outcome.request_id, ()):
            marks.append((preemption.start, "preempted"))
            marks.append((preemption.back, "recompute"))
            marks.append((preemption.done, "decode"))
        marks = sorted(mark for mark in marks if mark[0] <= outcome.finished)
        ends = [start for start, _ in marks[1:]] + [outcome.finished]
        return [
            Phase(name, start, end)
            for (start, name), end in zip(marks, ends, strict=True)
            if end > start
        ]
