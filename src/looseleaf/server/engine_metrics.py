"""The engine's own figures, read between two steps and put into Prometheus' form."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.counters import Counters
from looseleaf.engine.engine import Engine
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.usage import Usage, usage
from looseleaf.tiers.tiers import TierFigures

LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """`deferred` requests wait for another's computation and not for room. Of the `total` blocks
    each is free, evictable or held; `shared` ones are held more than once."""

    running: int
    waiting: int
    deferred: int
    total: int
    free: int
    evictable: int
    held: int
    shared: int
    copies: int
    counters: Counters
    usage: Usage
    prefix_caching: bool
    tiers: TierFigures | None


def read_figures(engine: Engine) -> EngineFigures:
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
        copies=copies,
        counters=Counters(
            **{name: getattr(scheduler.counters, name) for name in Counters.__dataclass_fields__}
        ),
        usage=usage(allocator, scheduler.running),
        prefix_caching=prefix_caching,
        tiers=None if engine.tiers is None else engine.tiers.figures(),
    )


class EngineCollector(Collector):
    """Gives out `figures`, which whoever scrapes brings up to date first."""

    def __init__(self, model_name: str, memory: MemoryPlan) -> None:
        self.figures: EngineFigures | None = None
        self._labels = (model_name, "0")
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        if figures is None:
            return
        counters, use = figures.counters, figures.usage
        yield self._gauge("vllm:num_requests_running", "Requests that run", figures.running)
        yield self._gauge(
            "vllm:num_requests_waiting",
            "Requests that wait, for room or for another's computation",
            figures.waiting + figures.deferred,
        )
        yield self._split(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by what for",
            "reason",
            {"capacity": figures.waiting, "deferred": figures.deferred},
        )
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "Blocks in use, from 0 to 1; evictable ones are not in use",
            figures.held / figures.total,
        )
        yield self._config(figures)
        yield self._counter("vllm:num_preemptions", "Preemptions", counters.preemptions)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up", counters.prefix_queries
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found stored", counters.prefix_hits
        )
        yield self._counter("looseleaf_steps", "Steps computed", counters.steps)
        yield self._counter(
            "looseleaf_computed_tokens", "Tokens computed", counters.computed_tokens
        )
        yield self._counter(
            "looseleaf_held_back",
            "Requests that waited for another to compute their prefix",
            counters.held_back,
        )
        for name, text, value in (
            ("drafts", "Times that tokens were guessed", counters.drafts),
            ("draft_tokens", "Tokens guessed", counters.draft_tokens),
            ("accepted_tokens", "Tokens guessed right", counters.accepted_tokens),
        ):
            yield self._counter(f"vllm:spec_decode_num_{name}", text, value)
        yield self._counter("looseleaf_kv_copies_on_write", "Blocks copied", figures.copies)
        yield self._gauge("looseleaf_kv_pool_blocks", "Blocks there are", figures.total)
        yield self._split(
            "looseleaf_kv_blocks",
            "Blocks by state",
            "state",
            {"free": figures.free, "evictable": figures.evictable, "held": figures.held},
        )
        yield self._gauge(
            "looseleaf_kv_blocks_shared", "Blocks held by several sequences", figures.shared
        )
        yield self._gauge(
            "looseleaf_kv_blocks_saved", "Blocks more without sharing", use.blocks_saved
        )
        yield self._split(
            "looseleaf_kv_utilization",
            "Stored of allocated slots, stored of all slots, sequence lengths over allocated slots",
            "kind",
            {"physical": use.physical, "pool": use.pool, "effective": use.effective},
        )
        yield self._gauge(
            "looseleaf_kv_waste", "Allocated slots that nothing will use, from 0 to 1", use.waste
        )

        if figures.tiers is not None:
            yield from self._tiers(figures.tiers)

    def _tiers(self, tiers: TierFigures) -> Iterator[Metric]:
        yield self._counter("looseleaf_kv_blocks_saved_to_tiers", "Blocks kept", tiers.saved)
        loaded = CounterMetricFamily(
            "looseleaf_kv_blocks_loaded", "Blocks brought back", labels=(*LABELS, "tier")
        )
        loaded.add_metric((*self._labels, "host"), tiers.loaded_from_host)
        loaded.add_metric((*self._labels, "disk"), tiers.loaded_from_disk)
        yield loaded
        yield self._counter(
            "looseleaf_kv_blocks_lost", "Blocks that were gone when they were wanted", tiers.lost
        )
        yield self._counter(
            "looseleaf_kv_blocks_not_kept",
            "Blocks that the disk did not take: too slow, full or failing",
            tiers.dropped,
        )
        yield self._split(
            "looseleaf_kv_tier_bytes",
            "What the tiers hold, other models' blocks on the disk included",
            "tier",
            {"host": tiers.host_bytes, "disk": tiers.disk_bytes},
        )

    def _config(self, figures: EngineFigures) -> Metric:
        memory = self._memory
        settings = {
            "block_size": memory.block_size,
            "num_gpu_blocks": memory.num_blocks,
            "num_cpu_blocks": 0,
            "enable_prefix_caching": figures.prefix_caching,
            "block_bytes": memory.block_bytes,
            "max_model_len": memory.max_model_len,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "How the KV cache is set up", labels=(*LABELS, *settings)
        )
        family.add_metric((*self._labels, *map(str, settings.values())), 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _split(self, name: str, text: str, label: str, values: dict[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            family.add_metric((*self._labels, key), value)
        return family
