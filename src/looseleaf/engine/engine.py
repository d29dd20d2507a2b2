"""The loop: schedule, execute, apply. The server, the offline API and the planner all run this."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult, Update
from looseleaf.engine.pins import Pins
from looseleaf.executors.base import Executor

if TYPE_CHECKING:
    from looseleaf.engine.journal import Journal
    from looseleaf.tiers.tiers import KVTiers

Clock = Callable[[], float]
"""Seconds since some fixed moment: `time.monotonic`, or a virtual clock."""

TRIMMED_AT_ONCE = 64
"""Blocks: while they are saved, a new request waits."""

StepObserver = Callable[[Step, StepResult], None]


class Engine:
    """One scheduler and one executor on one clock. Not thread-safe: it has one owner.

    `observers` see every step that was executed, with its result, before it is applied: recorders
    and meters go there. A `journal` is told of them too, and of all that is asked.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock = time.monotonic,
        tiers: "KVTiers | None" = None,
        floor_blocks: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.tiers = tiers
        self.floor_blocks = floor_blocks
        self.journal: Journal | None = None
        self.pins: Pins | None = None
        if isinstance(scheduler.allocator, BlockTables) and scheduler.allocator.prefix_caching:
            self.pins = Pins(scheduler.allocator)
        self.observers: list[StepObserver] = [] if tiers is None else [tiers.observe]

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request; raises CapacityError if it can never fit."""
        self.scheduler.add(request)
        if self.journal is not None:
            self.journal.added(request)

    def abort(self, request_id: RequestId, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request and free its blocks at once; False if it has ended already."""
        found = self.scheduler.abort(request_id, reason)
        if found and self.journal is not None:
            self.journal.ended(request_id, reason)
        return found

    def step(self) -> list[Update]:
        """Compute one step and return the news, by request.

        If that fails or is interrupted, the step is forgotten, and its requests begin again.
        """
        if self.pins:
            self.pins.expire(self.clock())
        start = self.clock()
        step = self.scheduler.schedule(start)
        try:
            while self.tiers is not None and not self.tiers.move(step, self.executor):
                # Something that was to be loaded is gone: without it, then.
                self.scheduler.discard()
                step = self.scheduler.schedule(self.clock())
            result = self.executor.execute(step)
            for observe in self.observers:
                observe(step, result)
            if self.journal is not None:
                self.journal.stepped(start, result)
        except BaseException:
            self.scheduler.discard()
            raise
        return self.scheduler.apply(result, self.clock())

    def trim(self) -> bool:
        """Give memory back to the system until the blocks that stay are `floor_blocks`, the latest
        used: some at a time, for while there is nothing to do. True if there is more to give."""
        tables = self.scheduler.allocator
        if self.floor_blocks is None or not isinstance(tables, BlockTables):
            return False
        if self.journal is not None:
            self.journal.trimmed()
        if self.pins is not None:
            self.pins.expire(self.clock())
        pool = tables.pool
        held = pool.num_blocks - pool.num_unreferenced
        keep = max(0, self.floor_blocks - held)
        evicted = pool.evict(max(keep, pool.num_evictable - TRIMMED_AT_ONCE))
        if self.tiers is not None and evicted:
            self.tiers.make_room(0.1)
            for save in tables.saves(evicted):
                self.tiers.keep(save, self.executor.read_block(save.block_id))
        if pool.num_evictable > keep:
            return True
        self.executor.release_blocks([b.block_id for b in pool.free_blocks() if b.key is None])
        return False

    def forget_cache(self) -> None:
        """Find nothing any more of what was computed so far, wherever it is kept."""
        tables = self.scheduler.allocator
        if isinstance(tables, BlockTables):
            tables.pool.forget_all()
        if self.tiers is not None:
            self.tiers.clear()
        if self.journal is not None:
            self.journal.forgot()

    def close(self) -> None:
        """Bring what is stored to the disk, if there is a tier there, and give everything back."""
        tables, tiers, self.tiers = self.scheduler.allocator, self.tiers, None
        if tiers is not None and isinstance(tables, BlockTables):
            if self.pins is not None:
                self.pins.clear()
            latest_first = reversed(tables.pool.free_blocks())
            blocks = [(b.block_id, b.key) for b in latest_first if b.key is not None]
            tiers.close(tables.saves(blocks), self.executor)
        self.executor.close()
        if self.journal is not None:
            self.journal.close()
