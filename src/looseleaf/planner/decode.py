"""Many steps at once, while every running request gets one token a step and nothing else happens.

Between two events (a request comes, one ends, memory runs out) a step decides nothing: it takes a
block for each sequence that has filled its last one, and publishes what was filled. So only that is
done, by the allocator itself and in the order of the steps; tokens and counts follow in bulk. What
comes out is what `Engine.step` would have come to, step for step, time for time, block for block.
"""

from collections.abc import Callable

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.engine.engine import Engine
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.leaving import Leaving

OnStep = Callable[[float, int, int], None]
"""(when the step began, its sequences, free blocks after it)"""

OnEnd = Callable[[Request], None]


class DecodeRuns:
    """Of one engine with a `PlannedExecutor`, which may have no tiers, no drafter and no events."""

    def __init__(self, engine: Engine, executor: PlannedExecutor, leaving: Leaving) -> None:
        scheduler, allocator = engine.scheduler, engine.scheduler.allocator
        self._scheduler = scheduler
        self._executor = executor
        plain = engine.tiers is None and scheduler.drafter is None and allocator.events is None
        self._tables = allocator if plain else None
        # A region was taken for all that its sequence may ever store: there is nothing to take.
        self._grows = not isinstance(allocator, ContiguousTables)
        self._pins = engine.pins
        self._leaving = leaving
        self._refused: Request | None = None
        self._num_preemptions = 0
        self._seen: set[RequestId] = set()

    def stepped(self, step: Step, *, ended: bool) -> None:
        """Take note of a step of the engine's own, and whether a request ended with it.

        Whoever has just been refused for want of memory will be so for as long as nothing but
        decoding happens. Blocks become fewer by what running requests take, and what they may still
        take (`admission_headroom`) never by more; and what they fill has a token of their own in
        it, so nobody finds more than before.
        """
        scheduler = self._scheduler
        preempted = scheduler.counters.preemptions != self._num_preemptions
        self._num_preemptions = scheduler.counters.preemptions
        self._refused = None
        self._seen = {sequence.request_id for sequence in step.sequences}
        if scheduler.waiting and not preempted and not ended and all(map(_goes_on, step.sequences)):
            self._refused = scheduler.waiting[0]

    def changed(self) -> None:
        """Something other than a step or a new request has changed who runs."""
        self._refused = None

    def run(self, until: float, on_step: OnStep, on_end: OnEnd) -> int:
        """As many steps as there can be that start before `until`, up to one with which requests
        end; 0 if the next one is not of that kind. Nothing must be added or aborted meanwhile."""
        scheduler, tables = self._scheduler, self._tables
        running = scheduler.running
        if tables is None or self._pins or not self._nobody_can_join(len(running)):
            return 0
        if not all(request.request_id in self._seen for request in running):
            return 0  # nobody has been told the block table of a fork that has just begun
        num_steps = min(map(_num_steps, running), default=0)
        if self._leaving:
            num_steps = self._leaving.num_steps(running, num_steps)
        # The first step may copy blocks: what is shared is no longer once it is written to.
        if num_steps == 0 or (self._grows and len(running) > tables.num_available):
            return 0
        return self._run(tables, list(running), num_steps, until, on_step, on_end)

    def _nobody_can_join(self, num_running: int) -> bool:
        """Whether `schedule` would give all running requests a token and admit nobody."""
        scheduler = self._scheduler
        config = scheduler.config
        if num_running > config.max_num_batched_tokens or scheduler.leaders.held():
            return False
        if not scheduler.waiting:
            return True
        if config.policy == "priority":
            return False  # somebody who waits may take another's place
        first = scheduler.waiting[0]
        if first is self._refused or num_running == config.max_num_batched_tokens:
            return True
        seats = num_running + 1 + len(first.children)
        return seats > config.max_num_seqs

    def _run(
        self,
        tables: KVAllocator,
        running: list[Request],
        num_steps: int,
        until: float,
        on_step: OnStep,
        on_end: OnEnd,
    ) -> int:
        clock = self._executor.clock
        seconds = self._executor.times.decoding(
            [r.num_computed_tokens for r in running], [r.request_id for r in running]
        )
        phases = _Phases(running, tables.block_size)
        filled = running if self._grows else []  # at first all, for whoever has to copy
        done = 0
        while done < num_steps and clock.now < until and len(filled) <= tables.num_available:
            for request in filled:
                reservation = tables.reserve(request, request.num_computed_tokens + 1)
                assert reservation is not None
            if filled:
                tables.end_schedule()
            start = clock.now
            clock.now += next(seconds)
            done += 1
            if done == num_steps:
                break
            filled = phases.filled_after(done) if self._grows else []
            for request in filled:
                tables.publish(request)
            on_step(start, len(running), tables.num_available)
        phases.finish(done)
        self._scheduler.counters.steps += done
        self._scheduler.counters.computed_tokens += done * len(running)
        if done == num_steps:
            for request in running:
                tables.publish(request)
                if len(request.token_ids) == request.max_total_tokens:
                    self._scheduler.abort(request.request_id, FinishReason.LENGTH)
                    on_end(request)
            self._refused = None
            on_step(start, len(running), tables.num_available)
        return done


class _Phases:
    """The sequences of a run by the step in which they fill a block."""

    def __init__(self, running: list[Request], block_size: int) -> None:
        self._block_size = block_size
        self._requests: dict[int, list[Request]] = {}
        for request in running:
            phase = -request.num_computed_tokens % block_size
            self._requests.setdefault(phase, []).append(request)
        self._done = dict.fromkeys(self._requests, 0)

    def filled_after(self, num_steps: int) -> list[Request]:
        """Those whose last block is full after so many steps, with their tokens up to then."""
        phase = num_steps % self._block_size
        requests = self._requests.get(phase)
        if requests is None:
            return []
        self._catch_up(phase, num_steps)
        return requests

    def finish(self, num_steps: int) -> None:
        for phase in self._requests:
            self._catch_up(phase, num_steps)

    def _catch_up(self, phase: int, num_steps: int) -> None:
        missing = num_steps - self._done[phase]
        self._done[phase] = num_steps
        for request in self._requests[phase]:
            token_ids = request.token_ids
            token_ids.extend(token_ids[-1:] * missing)
            request.num_computed_tokens += missing


def _goes_on(sequence: ScheduledSequence) -> bool:
    """Whether it computed one token, not of a prompt, for whose last block others may have been
    held back, and was not admitted in this step, which tells its whole table."""
    token_ids = sequence.token_ids
    is_one = len(token_ids) == 1 and token_ids[0] < 0
    return is_one and (sequence.table_start > 0 or not sequence.block_ids)


def _num_steps(request: Request) -> int:
    """After how many steps the request ends, if it only gains a token in each of them; else 0."""
    params = request.params
    num_tokens = len(request.token_ids)
    if (
        num_tokens - request.num_computed_tokens != 1
        or num_tokens <= request.num_prompt_tokens
        or request.children
        or request.token_ids[-1] >= 0
        or request.token_ids[-1] in request.stop_token_ids
        or params.logprobs is not None
        or params.prompt_logprobs
    ):
        return 0
    return request.max_total_tokens - num_tokens
