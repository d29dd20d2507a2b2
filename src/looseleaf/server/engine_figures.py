"""The engine's own figures, read between two steps."""

from collections import Counter
from dataclasses import dataclass

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.counters import Counters
from looseleaf.engine.distribution import Distribution
from looseleaf.engine.engine import Engine
from looseleaf.engine.meter import Meter
from looseleaf.engine.usage import Usage, usage
from looseleaf.tiers.tiers import TierFigures


@dataclass(frozen=True, slots=True)
class MeterFigures:
    """What a `Meter` has measured, as it was at one moment. `residency` is lifetime, idle time and
    reuse gap."""

    step_tokens: Distribution
    evicted: int
    external_queries: int
    external_hits: int
    returns: dict[str, float]
    misses: dict[str, float]
    missed_tokens: dict[str, float]
    cacheable_tokens: int
    residency: tuple[Distribution, Distribution, Distribution] | None

    @classmethod
    def of(cls, meter: Meter) -> "MeterFigures":
        misses, residency = meter.misses, meter.residency
        stays = None
        if residency is not None:
            lifetime, idle, gap = residency.lifetime, residency.idle, residency.reuse_gap
            stays = (lifetime.copy(), idle.copy(), gap.copy())
        return cls(
            step_tokens=meter.step_tokens.copy(),
            evicted=meter.num_evicted,
            external_queries=meter.external_queries,
            external_hits=meter.external_hits,
            returns={kind.value: count for kind, count in meter.returns.items()},
            misses={reason.value: count for reason, count in misses.requests.items()},
            missed_tokens={reason.value: count for reason, count in misses.tokens.items()},
            cacheable_tokens=misses.cacheable_tokens,
            residency=stays,
        )


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """`deferred` requests wait for another's computation and not for room. Of the `total` blocks
    each is free, evictable or held; `shared` ones are held by several sequences, `pinned`
    ones for a prefix that stays."""

    running: int
    waiting: int
    deferred: int
    total: int
    free: int
    evictable: int
    held: int
    shared: int
    pinned: int
    copies: int
    counters: Counters
    usage: Usage
    prefix_caching: bool
    tiers: TierFigures | None
    meter: MeterFigures


def read_figures(engine: Engine, meter: Meter) -> EngineFigures:
    """Runs in the owner thread; O(held blocks)."""
    scheduler = engine.scheduler
    allocator = scheduler.allocator
    available = allocator.num_available
    evictable = copies = 0
    prefix_caching = False
    if isinstance(allocator, BlockTables):
        evictable, copies = allocator.pool.num_evictable, allocator.num_copies
        prefix_caching = allocator.prefix_caching
    references = Counter(block for table in allocator.tables().values() for block in table)
    running, waiting = len(scheduler.running), len(scheduler.waiting)
    return EngineFigures(
        running=running,
        waiting=waiting,
        deferred=len(scheduler.requests) - running - waiting,
        total=allocator.num_blocks,
        free=available - evictable,
        evictable=evictable,
        held=allocator.num_blocks - available,
        shared=sum(count > 1 for count in references.values()),
        pinned=len(allocator.pinned),
        copies=copies,
        counters=Counters(
            **{name: getattr(scheduler.counters, name) for name in Counters.__dataclass_fields__}
        ),
        usage=usage(allocator, scheduler.running),
        prefix_caching=prefix_caching,
        tiers=None if engine.tiers is None else engine.tiers.figures(),
        meter=MeterFigures.of(meter),
    )
