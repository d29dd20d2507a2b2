"""What a server sends to others as it goes: options, and what comes of them."""

import argparse

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.kv_publisher import KVEventsConfig, KVEventStream
from looseleaf.server.tracing import Tracing


def add_exports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("events and traces")
    group.add_argument(
        "--kv-events-config",
        type=_kv_events_config,
        metavar="JSON",
        help="publish which blocks are cached, for routers, as vLLM does and with its fields: "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}', and as wanted """
        "replay_endpoint, topic, buffer_steps, hwm, max_queue_size; needs looseleaf[kv-events]",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send a span for each request to this OpenTelemetry collector, as OTLP over HTTP, "
        "like http://localhost:4318/v1/traces; needs looseleaf[otel]",
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


def tracing(options: argparse.Namespace) -> Tracing | None:
    """To be closed. None where none is asked for. Raises LooseleafError."""
    endpoint: str | None = options.otlp_traces_endpoint
    return None if endpoint is None else Tracing(endpoint)


def _kv_events_config(text: str) -> KVEventsConfig:
    try:
        return msgspec.json.decode(text, type=KVEventsConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"it cannot be understood: {error}") from None
