"""What a server tells others of itself as it goes: options, and what comes of them."""

import argparse

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.kv_publisher import KVEventsConfig, KVEventStream


def add_observability(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("observability")
    group.add_argument(
        "--kv-events-config",
        type=_kv_events_config,
        metavar="JSON",
        help="publish which blocks are cached, for routers, as vLLM does and with its fields: "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}', and as wanted """
        "replay_endpoint, topic, buffer_steps, hwm, max_queue_size; needs looseleaf[kv-events]",
    )


def kv_event_stream(options: argparse.Namespace) -> KVEventStream | None:
    """To be closed. None where none is asked for. Raises LooseleafError."""
    config: KVEventsConfig | None = options.kv_events_config
    if config is None or not config.is_on:
        return None
    if options.kv_allocator != "paged" or not options.enable_prefix_caching:
        raise LooseleafError(
            "--kv-events-config tells which blocks are cached, but none are: leave it out, or let "
            "--enable-prefix-caching and --kv-allocator be what they are by default"
        )
    return KVEventStream(config)


def _kv_events_config(text: str) -> KVEventsConfig:
    try:
        return msgspec.json.decode(text, type=KVEventsConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"it cannot be understood: {error}") from None
