"""The server's own engine, driven by a list of requests on a virtual clock.

What is replaced is the arithmetic and the time that it takes. Scheduler, block tables and prefix
cache are those that serve: `Engine.step` decides, and `DecodeRuns` does many of its steps at once
where there is nothing to decide.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.errors import CapacityError
from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult, Update
from looseleaf.engine.beams import BeamSearch
from looseleaf.engine.build import build_scheduler, without_garbage_collection
from looseleaf.engine.engine import Engine
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.engine.usage import Usage, usage
from looseleaf.planner.agenda import Agenda, Event, Then
from looseleaf.planner.decode import DecodeRuns
from looseleaf.planner.executor import PlannedExecutor, TimedExecutor
from looseleaf.planner.leaving import Leaving

if TYPE_CHECKING:
    from looseleaf.tiers.tiers import KVTiers

MOST_SAMPLES = 1000
"""Of where the memory is, while requests run."""


def planned_scheduler(
    settings: EngineSettings, memory: MemoryPlan, tiers: "KVTiers | None" = None
) -> Scheduler:
    """That of a server with these settings, but for the hashes: cheaper, the same in every run."""
    return build_scheduler(settings, memory, tiers=tiers, secret=b"planner", hasher=_hash)


def _hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    # Of numbers only: the hash of bytes is another one in every process.
    chain = (int.from_bytes(parent, "little"), tuple(token_ids))
    return hash(chain).to_bytes(8, "little", signed=True)


class Outcome(NamedTuple):
    """What became of one sequence; times are seconds on the clock, those of its tokens when its
    reader had them. `num_cached_tokens` counts prompt tokens that were found stored. Of several
    samples of a prompt, or answers of a beam search, one `is_first`, and computes it for all."""

    request_id: RequestId
    arrival: float
    scheduled: float | None
    first_token: float | None
    finished: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    reason: FinishReason
    is_first: bool


@dataclass(slots=True)
class Steps:
    """One entry a step: its beginning and length in seconds, its sequences, who waits and how many
    blocks nobody holds after it."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    running: "array[int]" = field(default_factory=lambda: array("i"))
    waiting: "array[int]" = field(default_factory=lambda: array("i"))
    available: "array[int]" = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.starts)

    def add(
        self, start: float, seconds: float, num_running: int, num_waiting: int, num_available: int
    ) -> None:
        self.starts.append(start)
        self.seconds.append(seconds)
        self.running.append(num_running)
        self.waiting.append(num_waiting)
        self.available.append(num_available)


class Refused(NamedTuple):
    """A request that can never fit, and why."""

    arrival: float
    reason: str


@dataclass(slots=True)
class Replayed:
    """What happened. `num_plain_steps` were the engine's one by one, the rest decode runs. `usage`
    is where the memory was, every `sample_seconds` and whenever there was nothing more to do: at
    `usage_times`, with so many `cached` blocks that nobody held but that could still be found."""

    outcomes: list[Outcome] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    num_plain_steps: int = 0
    usage: list[Usage] = field(default_factory=list)
    usage_times: "array[float]" = field(default_factory=lambda: array("d"))
    cached: "array[int]" = field(default_factory=lambda: array("i"))


class Replay:
    """One run of an engine, from the first request to the last token.

    Where the memory is gets noted every `sample_seconds`, less often in long replays, never with
    None. `on_progress` is told how many requests have ended, whenever one has. With `every_step`
    each step is the engine's own, which changes nothing but the time it takes. Readers have tokens
    `request_seconds` after the step that drew them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: TimedExecutor,
        *,
        every_step: bool = False,
        tiers: "KVTiers | None" = None,
        sample_seconds: float | None = None,
        on_progress: Callable[[int], None] | None = None,
        request_seconds: float = 0.0,
    ) -> None:
        self.clock = executor.clock
        self._request_seconds = request_seconds
        self._executor = executor
        self.engine = Engine(scheduler, executor, self.clock, tiers)
        self.engine.observers.append(self._observe)
        self.result = Replayed()
        self._agenda = Agenda()
        self._leaving = Leaving()
        self._runs: DecodeRuns | None = None
        if isinstance(executor, PlannedExecutor) and not every_step:
            self._runs = DecodeRuns(self.engine, executor, self._leaving)
        self._on_progress = on_progress
        self._sample_seconds = sample_seconds
        self._next_sample = inf if sample_seconds is None else 0.0
        self._num_idle = 0
        self._stepped: Callable[[], None] | None = None
        self._live: dict[RequestId, Request] = {}
        self._families: dict[RequestId, _Family] = {}
        self._searches: dict[str, _Searching] = {}
        self._step = Step(0, ())

    def watch_steps(self, stepped: Callable[[], None]) -> None:
        """Call `stepped` after each step, all of which are the engine's own from now on."""
        self._runs = None
        self._stepped = stepped

    def run(self, events: Iterable[Event]) -> Replayed:
        """Replay what happens, in the order of its times, and what follows from it. If an event
        raises, another run goes on from there."""
        self._agenda.follow(events)
        with without_garbage_collection():
            self._loop(self._agenda)
        return self.result

    def _loop(self, coming: Agenda) -> None:
        while self.has_work:
            if not self.engine.has_work and coming.time < inf:
                if coming.time > self._next_sample:
                    self._sample()  # how it will be until then
                self.clock.wait_until(coming.time)
                coming.pop().act(self)
                if not self.engine.has_work:
                    continue
            self.clock.wait_until(self._executor.start_time())
            while coming.time <= self.clock.now:
                coming.pop().act(self)
            # Not only between runs: these end where requests do, and then the memory is emptier.
            until = min(self._next_sample, coming.time)
            if self.engine.has_work and not self._run(until):
                self._plain_step()
            if self._leaving:
                for request_id in self._leaving.gone(self.engine.scheduler.running):
                    self.end(request_id, FinishReason.ABORT)
            if self._stepped is not None:
                self._stepped()
            if self.clock.now >= self._next_sample:
                self._sample()
        if self._sample_seconds is not None:
            self._sample()

    @property
    def has_work(self) -> bool:
        """Whether there is more to do, now or later."""
        return self.engine.has_work or self._agenda.time < inf

    @property
    def next_time(self) -> float:
        """When it will do something next if nothing more comes; infinite if never."""
        now = self.clock.now
        return now if self.engine.has_work else max(now, self._agenda.time)

    def schedule(self, event: Event) -> None:
        self._agenda.add(event)

    def add(
        self, request: Request, *, then: Then | None = None, leaves_after: int | None = None
    ) -> None:
        family = (request, *request.children)
        try:
            self.engine.add(request)
        except CapacityError as error:
            self._refuse(request.arrival_time, error, then)
            return
        for member in family:
            self._live[member.request_id] = member
        if then is not None:
            self._families.update(
                dict.fromkeys((m.request_id for m in family), _Family(then, len(family)))
            )
        if leaves_after is not None:
            self._leaving.add(request, leaves_after)

    def search(
        self, search: BeamSearch, *, arrival: float | None = None, then: Then | None = None
    ) -> None:
        time = self.clock.now if arrival is None else arrival
        try:
            search.start()
        except CapacityError as error:
            self._refuse(time, error, then)
            return
        self._searches[search.name] = _Searching(search, time, then)

    def _refuse(self, arrival: float, error: CapacityError, then: Then | None) -> None:
        self.result.refused.append(Refused(arrival, str(error)))
        if then is not None:
            then(self, self.clock.now)

    def end(self, request_id: RequestId, reason: FinishReason) -> None:
        request = self._live.get(request_id)
        if request is None:
            return
        family = (*request.children, request)
        self.engine.abort(request_id, reason)
        self._changed()
        for member in family:
            self._ended(member)

    def cancel(self, name: str) -> None:
        found = self._searches.pop(name, None)
        if found is not None:
            found.search.cancel()
            self._changed()

    def _sample(self) -> None:
        assert self._sample_seconds is not None
        self._next_sample = self.clock.now + self._sample_seconds
        scheduler, result = self.engine.scheduler, self.result
        allocator = scheduler.allocator
        result.usage.append(usage(allocator, scheduler.running))
        self._num_idle += not result.usage[-1].allocated
        result.usage_times.append(self.clock.now)
        pool = allocator.pool if isinstance(allocator, BlockTables) else None
        result.cached.append(0 if pool is None else pool.num_evictable)
        if len(result.usage) - self._num_idle > MOST_SAMPLES:
            self._look_less_often()

    def _look_less_often(self) -> None:
        """Half as often, and as if it had always been so; but what holds while nothing is to be
        done stays."""
        assert self._sample_seconds is not None
        self._sample_seconds *= 2
        result = self.result
        kept = [i for i, one in enumerate(result.usage) if i % 2 == 0 or not one.allocated]
        result.usage = [result.usage[i] for i in kept]
        result.usage_times = array("d", (result.usage_times[i] for i in kept))
        result.cached = array("i", (result.cached[i] for i in kept))
        self._num_idle = sum(not one.allocated for one in result.usage)

    def _run(self, until: float) -> int:
        return 0 if self._runs is None else self._runs.run(until, self._decoded, self._ended)

    def _decoded(self, start: float, num_running: int, num_available: int) -> None:
        num_waiting = len(self.engine.scheduler.waiting)
        seconds = self.clock.now - start
        self.result.steps.add(start, seconds, num_running, num_waiting, num_available)

    def _observe(self, step: Step, _: StepResult) -> None:
        self._step = step

    def _plain_step(self) -> None:
        start = self.clock.now
        updates = self.engine.step()
        scheduler = self.engine.scheduler
        self.result.num_plain_steps += 1
        ended = self._end(updates)
        for found in list(self._searches.values()):
            ended = True  # or forked, or waiting for others of its beams
            self._go_on(found, updates)
        self.result.steps.add(
            start,
            self.clock.now - start,
            len(self._step.sequences),
            len(scheduler.waiting) + len(scheduler.leaders.held()),
            scheduler.allocator.num_available,
        )
        if self._runs is not None:
            self._runs.stepped(self._step, ended=ended)

    def _end(self, updates: list[Update]) -> bool:
        ended = [u.request_id for u in updates if u.finish_reason is not None]
        for request_id in ended:
            if request_id in self._live:  # not a beam
                self._ended(self._live[request_id])
        return bool(ended)

    def _changed(self) -> None:
        if self._runs is not None:
            self._runs.changed()

    def _go_on(self, found: "_Searching", updates: list[Update]) -> None:
        search = found.search
        try:
            search.update(updates)
        except CapacityError as error:  # an allocator of old reserves more for a beam
            search.cancel()
            del self._searches[search.name]
            self._refuse(found.arrival, error, found.then)
            return
        if not search.finished:
            return
        del self._searches[search.name]
        assert search.first is not None
        for index, answer in enumerate(search.answers):
            self._note(
                Outcome(
                    RequestId(f"{search.name}/{index}"),
                    found.arrival,
                    search.first.first_scheduled_time,
                    search.first.first_token_time,
                    self.clock.now,
                    search.first.num_prompt_tokens,
                    len(answer.token_ids),
                    search.num_cached_tokens,
                    0,
                    answer.finish_reason,
                    index == 0,
                )
            )
        if found.then is not None:
            found.then(self, self.clock.now + self._request_seconds)

    def _ended(self, request: Request) -> None:
        name = request.request_id
        del self._live[name]
        assert request.finish_reason is not None
        self._note(
            Outcome(
                name,
                request.arrival_time,
                request.first_scheduled_time,
                request.first_token_time,
                self.clock.now,
                request.num_prompt_tokens,
                request.num_output_tokens,
                request.num_cached_tokens or 0,
                request.num_preemptions,
                request.finish_reason,
                request.sample_index == 0,
            )
        )
        if self._leaving:
            self._leaving.forget(name)
        family = self._families.pop(name, None) if self._families else None
        if family is not None:
            family.num_left -= 1
            if not family.num_left:
                family.then(self, self.clock.now + self._request_seconds)

    def _note(self, outcome: Outcome) -> None:
        late, first = self._request_seconds, outcome.first_token
        if late:
            outcome = outcome._replace(
                first_token=None if first is None else first + late,
                finished=outcome.finished + late,
            )
        self.result.outcomes.append(outcome)
        if self._on_progress is not None:
            self._on_progress(len(self.result.outcomes))


@dataclass(slots=True)
class _Family:
    """Samples of one prompt, of which so many have not ended."""

    then: Then
    num_left: int


class _Searching(NamedTuple):
    search: BeamSearch
    arrival: float
    then: Then | None
