"""The engine's own figures for Prometheus: under vLLM's names what it has too, the rest under ours.

Names of counters get `_total` where they are scraped.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from looseleaf.engine.memory import MemoryPlan
from looseleaf.server.engine_figures import EngineFigures, MeterFigures
from looseleaf.server.families import Families
from looseleaf.server.legacy_metrics import legacy_metrics
from looseleaf.tiers.tiers import TierFigures


class EngineCollector(Collector):
    """Gives out `figures`, which whoever scrapes brings up to date first. With `legacy_names` also
    under names that vLLM had before."""

    def __init__(
        self, families: Families, memory: MemoryPlan, *, legacy_names: bool = False
    ) -> None:
        self.figures: EngineFigures | None = None
        self._families = families
        self._memory = memory
        self._legacy_names = legacy_names

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        if figures is None:
            return
        yield from self._queue(figures)
        yield from self._work(figures)
        yield from self._blocks(figures)
        yield from self._slots(figures)
        yield from self._prefixes(figures)
        if figures.meter.residency is not None:
            yield from self._residency(figures.meter)
        if figures.tiers is not None:
            yield from self._tiers(figures, figures.tiers)
        if self._legacy_names:
            yield from legacy_metrics(self._families, figures)

    def _queue(self, figures: EngineFigures) -> Iterator[Metric]:
        make = self._families
        yield make.gauge("vllm:num_requests_running", "Requests that run", figures.running)
        yield make.gauge(
            "vllm:num_requests_waiting",
            "Requests that wait, for room or for another's computation",
            figures.waiting + figures.deferred,
        )
        yield make.gauges(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by what for",
            "reason",
            {"capacity": figures.waiting, "deferred": figures.deferred},
        )
        adapters = {"max_lora": 0, "running_lora_adapters": "", "waiting_lora_adapters": ""}
        yield make.info("vllm:lora_requests_info", "Adapters: there are none", adapters, 0)

    def _work(self, figures: EngineFigures) -> Iterator[Metric]:
        make, counters = self._families, figures.counters
        yield make.counter("looseleaf_steps", "Steps computed", counters.steps)
        yield make.counter("looseleaf_computed_tokens", "Tokens computed", counters.computed_tokens)
        yield make.histogram(
            "vllm:iteration_tokens_total", "Tokens computed, by step", figures.meter.step_tokens
        )
        yield make.counter("vllm:num_preemptions", "Preemptions", counters.preemptions)
        yield make.counters(
            "looseleaf_preempted_returned",
            "Requests that ran again after a preemption, by what became of their KV",
            "kv",
            figures.meter.returns,
        )
        yield make.counter(
            "looseleaf_held_back",
            "Requests that waited for another to compute their prefix",
            counters.held_back,
        )
        for name, text, value in (
            ("drafts", "Times that tokens were guessed", counters.drafts),
            ("draft_tokens", "Tokens guessed", counters.draft_tokens),
            ("accepted_tokens", "Tokens guessed right", counters.accepted_tokens),
        ):
            yield make.counter(f"vllm:spec_decode_num_{name}", text, value)

    def _blocks(self, figures: EngineFigures) -> Iterator[Metric]:
        make, memory = self._families, self._memory
        yield make.gauge(
            "vllm:kv_cache_usage_perc",
            "Blocks in use, from 0 to 1; evictable ones are not in use",
            figures.held / figures.total,
        )
        settings = {
            "block_size": memory.block_size,
            "num_gpu_blocks": memory.num_blocks,
            "num_cpu_blocks": 0,
            "enable_prefix_caching": figures.prefix_caching,
            "block_bytes": memory.block_bytes,
            "max_model_len": memory.max_model_len,
        }
        yield make.info("vllm:cache_config_info", "How the KV cache is set up", settings)
        yield make.gauge("looseleaf_kv_pool_blocks", "Blocks there are", figures.total)
        yield make.gauges(
            "looseleaf_kv_blocks",
            "Blocks by state",
            "state",
            {"free": figures.free, "evictable": figures.evictable, "held": figures.held},
        )
        for name, text, value in (
            ("shared", "Blocks held by several sequences", figures.shared),
            ("pinned", "Blocks held for prefixes that stay", figures.pinned),
            ("saved", "Blocks more without sharing", figures.usage.blocks_saved),
        ):
            yield make.gauge(f"looseleaf_kv_blocks_{name}", text, value)
        yield make.counter("looseleaf_kv_copies_on_write", "Blocks copied", figures.copies)
        yield make.counter("looseleaf_kv_evictions", "Blocks evicted", figures.meter.evicted)

    def _slots(self, figures: EngineFigures) -> Iterator[Metric]:
        make, use = self._families, figures.usage
        yield make.gauges(
            "looseleaf_kv_slots",
            "Slots of blocks in tables: stored, still to be used, and never to be",
            "state",
            {
                "stored": use.stored,
                "reserved": use.reserved,
                "internal": use.internal,
                "external": use.external,
            },
        )
        yield make.gauges(
            "looseleaf_kv_utilization",
            "Stored of allocated slots, stored of all slots, sequence lengths over allocated slots",
            "kind",
            {"physical": use.physical, "pool": use.pool, "effective": use.effective},
        )
        yield make.gauge(
            "looseleaf_kv_waste", "Allocated slots that nothing will use, from 0 to 1", use.waste
        )

    def _prefixes(self, figures: EngineFigures) -> Iterator[Metric]:
        make, counters, meter = self._families, figures.counters, figures.meter
        yield make.counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up", counters.prefix_queries
        )
        yield make.counter(
            "vllm:prefix_cache_hits", "Prompt tokens found stored", counters.prefix_hits
        )
        yield make.counter(
            "looseleaf_prefix_cacheable_tokens",
            "Prompt tokens that might be found: all but the last of each prompt",
            meter.cacheable_tokens,
        )
        yield make.counters(
            "looseleaf_prefix_misses",
            "Requests of whose prompt something was not found, by why the first of it was not",
            "reason",
            meter.misses,
        )
        yield make.counters(
            "looseleaf_prefix_missed_tokens",
            "Cacheable tokens that were not found, by why the first of them was not",
            "reason",
            meter.missed_tokens,
        )

    def _residency(self, meter: MeterFigures) -> Iterator[Metric]:
        assert meter.residency is not None
        for found, name, text in zip(
            meter.residency,
            ("lifetime", "idle_before_evict", "reuse_gap"),
            (
                "From allocation to eviction",
                "From the last use to eviction",
                "From one use to the next",
            ),
            strict=True,
        ):
            yield self._families.histogram(
                f"vllm:kv_block_{name}_seconds", f"{text}, of a sample of the blocks", found
            )

    def _tiers(self, figures: EngineFigures, tiers: TierFigures) -> Iterator[Metric]:
        make, meter = self._families, figures.meter
        loaded = {"host": tiers.loaded_from_host, "disk": tiers.loaded_from_disk}
        yield make.counter(
            "vllm:external_prefix_cache_queries",
            "Prompt tokens looked up outside the pool",
            meter.external_queries,
        )
        yield make.counter(
            "vllm:external_prefix_cache_hits",
            "Prompt tokens that came from outside the pool",
            meter.external_hits,
        )
        # The names of directions are vLLM's; its GPU is our pool.
        yield make.counters(
            "vllm:kv_offload_total_bytes",
            "KV moved out of the pool and into it",
            "transfer_type",
            {
                "GPU_to_CPU": tiers.saved * self._memory.block_bytes,
                "CPU_to_GPU": sum(loaded.values()) * self._memory.block_bytes,
            },
        )
        yield make.counter("looseleaf_kv_blocks_saved_to_tiers", "Blocks kept", tiers.saved)
        yield make.counters("looseleaf_kv_blocks_loaded", "Blocks brought back", "tier", loaded)
        for name, text, value in (
            ("lost", "Blocks that were gone when they were wanted", tiers.lost),
            ("damaged", "Blocks that could not be read from the disk", tiers.damaged),
            (
                "not_kept",
                "Blocks that the disk did not take: too slow, full or failing",
                tiers.dropped,
            ),
        ):
            yield make.counter(f"looseleaf_kv_blocks_{name}", text, value)
        yield make.gauges(
            "looseleaf_kv_tier_bytes",
            "What the tiers hold, other models' blocks on the disk included",
            "tier",
            {"host": tiers.host_bytes, "disk": tiers.disk_bytes},
        )
