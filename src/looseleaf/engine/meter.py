"""What the steps of an engine tell whoever measures it."""

import logging
from enum import StrEnum

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step, StepResult
from looseleaf.engine.distribution import Distribution
from looseleaf.engine.engine import Engine
from looseleaf.engine.misses import PrefixMisses
from looseleaf.engine.residency import Residency

logger = logging.getLogger(__name__)

STEP_TOKENS = tuple(float(2**exponent) for exponent in (0, *range(3, 15)))


class Return(StrEnum):
    """What became of the KV of a request that was preempted, when it ran again."""

    KEPT = "kept"
    """Some of it was still in the pool."""
    LOADED = "loaded"
    """Some of it came from another tier."""
    RECOMPUTED = "recomputed"
    """All of it had to be computed again."""


class Meter:
    """Observes every step of `engine` from now on, in the thread of its owner.

    With `kv_sample`, between 0 and 1, it also watches that share of the blocks. A failure in here
    ends the measuring and nothing else.
    """

    def __init__(self, engine: Engine, kv_sample: float | None = None) -> None:
        allocator = engine.scheduler.allocator
        self.step_tokens = Distribution(STEP_TOKENS)
        self.num_evicted = 0
        self.external_queries = self.external_hits = 0
        """Prompt tokens that were asked for outside the pool, and that came from there."""
        self.returns = dict.fromkeys(Return, 0)
        self.misses = PrefixMisses(allocator)
        self.residency: Residency | None = None
        if kv_sample:
            stride = max(1, round(1 / kv_sample))
            self.residency = Residency(allocator.block_size, stride)
        self._engine = engine
        self._block_size = allocator.block_size
        self._requests = engine.scheduler.requests
        self._tables = allocator if isinstance(allocator, BlockTables) else None
        self._preempted: set[RequestId] = set()
        engine.observers.append(self._observe)

    def _observe(self, step: Step, result: StepResult) -> None:
        try:
            self._measure(step)
        except Exception:
            self._engine.observers.remove(self._observe)
            logger.exception("the engine's meter failed, and measures nothing from now on")

    def _measure(self, step: Step) -> None:
        now = self._engine.clock()
        if self._preempted:
            self._preempted &= self._requests.keys()
        for request_id in step.finished:
            if request_id in self._requests:
                self._preempted.add(request_id)
            self.misses.ended(request_id)
        evicted = () if self._tables is None else self._tables.evicted
        self.num_evicted += len(evicted)
        if self.residency is not None:
            for block_id, _ in evicted:
                self.residency.evicted(block_id, now)
        copied = {copy.destination for copy in step.copies}
        loaded = {load.block_id for load in step.loads}
        num_tokens = 0
        for sequence in step.sequences:
            num_tokens += len(sequence.token_ids)
            if not sequence.block_ids:
                continue
            if self.residency is not None:
                self.residency.scheduled(sequence, copied | loaded, now)
            if sequence.table_start == 0 and sequence.request_id in self._requests:
                self._began(sequence, len(loaded.intersection(sequence.block_ids)))
        self.step_tokens.add(num_tokens)

    def _began(self, sequence: ScheduledSequence, num_loaded: int) -> None:
        """All of its table is told, of which so many blocks come from another tier."""
        request = self._requests[sequence.request_id]
        if request.num_cached_tokens is None and self._engine.tiers is not None:
            loaded = num_loaded * self._block_size
            in_pool = sequence.first_position - loaded
            self.external_queries += max(0, request.num_prompt_tokens - 1 - in_pool)
            self.external_hits += loaded
        if request.request_id in self._preempted:
            self._preempted.remove(request.request_id)
            found = Return.KEPT if sequence.first_position else Return.RECOMPUTED
            self.returns[Return.LOADED if num_loaded else found] += 1
        self.misses.began(request, sequence.first_position)
