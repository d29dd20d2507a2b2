"""Names that vLLM had before, for boards and routers that still ask for them."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from looseleaf.server.engine_figures import EngineFigures
from looseleaf.server.families import Families


def legacy_metrics(families: Families, figures: EngineFigures) -> Iterator[Metric]:
    counters = figures.counters
    yield families.gauge(
        "vllm:gpu_cache_usage_perc",
        "Now vllm:kv_cache_usage_perc",
        figures.held / figures.total,
    )
    yield families.gauge(
        "vllm:cpu_cache_usage_perc", "Blocks outside the pool are not requests': always 0", 0
    )
    yield families.gauge(
        "vllm:num_requests_swapped",
        "Requests that gave way wait with all others: always 0",
        0,
    )
    yield families.counter(
        "vllm:gpu_prefix_cache_queries", "Now vllm:prefix_cache_queries", counters.prefix_queries
    )
    yield families.counter(
        "vllm:gpu_prefix_cache_hits", "Now vllm:prefix_cache_hits", counters.prefix_hits
    )
    queries = counters.prefix_queries
    yield families.gauge(
        "vllm:gpu_prefix_cache_hit_rate",
        "Prompt tokens found stored, of all, from 0 to 1",
        counters.prefix_hits / queries if queries else 0.0,
    )
