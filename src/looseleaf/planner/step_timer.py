"""How long a service's steps take, with all that comes between two of them."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.engine.service import EngineService
from looseleaf.planner.cooling import Caches, Cooling
from looseleaf.planner.cost_model import StepSummary
from looseleaf.planner.shared_reads import SharedReads
from looseleaf.planner.summary_times import step_summary


class TimedStep(NamedTuple):
    """`load` numbers the load that it was part of. Of the `summary`, `idle` is measured too; how
    cold the caches were depends on a model (`cooling`)."""

    summary: StepSummary
    seconds: float
    load: int

    @property
    def kind(self) -> str:
        if not self.summary.chunk:
            return "decode"
        return "mixed" if self.summary.num_decodes else "prefill"


def summaries(steps: Iterable[TimedStep], cooling: Cooling | None) -> Iterator[StepSummary]:
    """Of steps of one engine, one after the other, with how cold the caches were."""
    caches = None if cooling is None else Caches(cooling)
    for step in steps:
        summary = step.summary
        if caches is not None:
            caches.rest(summary.idle)
            summary = summary._replace(cold=caches.cold)
            caches.step(step.seconds)
        yield summary


class StepTimer:
    """Notes every step of a service that has not started yet, in `steps`.

    A step lasts from the end of the one before, if there was work left, to its own: handing tokens
    over and taking requests in is part of it. `load` is written into each; with None, steps are not
    noted. `besides` is for whoever waits for tokens: seconds until a first one that were no step's.
    """

    def __init__(
        self,
        service: EngineService,
        engine: Engine,
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps: list[TimedStep] = []
        self.besides: list[float] = []
        self.load: int | None = None
        self._clock = clock
        self._shared = SharedReads(block_size)
        self._summary: StepSummary | None = None
        self._since = 0.0
        self._end = -math.inf
        self._busy = False
        engine.observers.append(self._observe)
        service.watchers.append(self._watch)

    def _observe(self, step: Step, _: StepResult) -> None:
        self._summary = step_summary(step, rows_that_draw=True, shared=self._shared)

    def _watch(self, engine: Engine) -> None:
        """Called before each step, and after each command."""
        now = self._clock()
        summary, self._summary = self._summary, None
        if summary is not None and summary.num_tokens:
            if self.load is not None:
                summary = summary._replace(idle=self._since - self._end)
                self.steps.append(TimedStep(summary, now - self._since, self.load))
            self._end = now
        if summary is not None or not self._busy:
            self._since = now
        self._busy = engine.has_work
