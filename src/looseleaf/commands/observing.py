"""What a server that is started tells about itself: options for its metrics and its log."""

import argparse

from looseleaf.commands.logs import LOG_FORMATS
from looseleaf.server.observing import DEFAULT_KV_SAMPLE, Observing


def add_observing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("observability")
    group.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=LOG_FORMATS[0],
        help="lines to read, or one JSON object a line; with --enable-log-requests a request's has "
        "its id, the label of its key, tokens and times, and nothing of what was said",
    )
    group.add_argument(
        "--kv-cache-metrics",
        action="store_true",
        help="measure how long KV blocks stay, lie idle and wait to be found again",
    )
    group.add_argument(
        "--kv-cache-metrics-sample",
        type=float,
        default=DEFAULT_KV_SAMPLE,
        metavar="SHARE",
        help="of the blocks, whose stay --kv-cache-metrics measures; 1 is every block",
    )
    group.add_argument(
        "--legacy-metric-names",
        action="store_true",
        help="tell metrics also under names that vLLM had before, like vllm:gpu_cache_usage_perc",
    )


def observing_of(options: argparse.Namespace) -> Observing:
    """Raises ConfigError for a share that is none."""
    sample = options.kv_cache_metrics_sample
    Observing(kv_sample=sample)
    return Observing(
        legacy_metric_names=options.legacy_metric_names,
        kv_sample=sample if options.kv_cache_metrics else None,
    )
