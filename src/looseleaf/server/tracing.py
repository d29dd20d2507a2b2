"""A span for each request, sent to an OpenTelemetry collector, under the names that vLLM gives."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from looseleaf import __version__
from looseleaf.core.errors import ConfigError
from looseleaf.core.request import FinishReason
from looseleaf.engine.groups import Group
from looseleaf.server.call import current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0
"""For spans that are not sent yet when the server ends."""

_TRACE_HEADERS = (b"traceparent", b"tracestate")

Attribute = str | int | float | tuple[str, ...]


class TraceMiddleware:
    """Notes which trace a request belongs to, by W3C's headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            current().trace_headers = {
                name.decode(): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in _TRACE_HEADERS
            }
        await self._app(scope, receive, send)


class Tracing:
    """Spans go out in batches, from a thread of its own; those that find no room are dropped.

    What OpenTelemetry's own environment variables say is heeded, such as OTEL_SERVICE_NAME.
    """

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is an http or https URL; one without a path gets /v1/traces. Raises
        ConfigError, also without the packages."""
        url = _url(endpoint)
        provider = _provider(url)
        self._provider = provider
        self._tracer = provider.get_tracer("looseleaf", __version__)
        self._has_failed = False
        logger.info("a span for each request goes to %s", urlsplit(url).hostname)

    def __enter__(self) -> "Tracing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, span: Callable[[], "RequestSpan"]) -> None:
        """Send what `span` makes. Never raises."""
        try:
            self._send(span())
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logger.exception("tracing: a span was not made; logged once")

    def close(self) -> None:
        """Send what waits, if that is quick."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(LAST_WORDS_SECONDS)
        if closing.is_alive():
            logger.warning("tracing: the last spans were not taken in time")

    def _send(self, span: "RequestSpan") -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        made = self._tracer.start_span(
            "llm_request",
            TraceContextTextMapPropagator().extract(span.headers),
            kind=SpanKind.SERVER,
            attributes=span.attributes,
            start_time=span.start,
        )
        if span.failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.end)


class RequestSpan:
    """What is told of one prompt and its samples when they have ended.

    Times are on the service's clock, which says `now`: when the first token of any sample came and
    the last of all. `unfinished` is how samples ended that the engine did not finish.
    """

    def __init__(
        self,
        group: Group,
        *,
        request_id: str,
        model: str,
        first: float | None,
        last: float | None,
        now: float,
        unfinished: FinishReason,
        headers: Mapping[str, str],
    ) -> None:
        request, params = group.request, group.params
        reasons = [sample.finish_reason or unfinished for sample in group.samples]
        arrival, scheduled = request.arrival_time, request.first_scheduled_time
        self.headers = headers
        self.failed = FinishReason.ERROR in reasons
        self.end = time.time_ns()
        self.start = self.end - int(1e9 * (now - arrival))
        self.attributes: dict[str, Attribute] = {
            "gen_ai.request.id": request_id,
            "gen_ai.request.n": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": tuple(str(reason) for reason in reasons),
            "gen_ai.usage.prompt_tokens": group.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": group.num_output_tokens,
            "gen_ai.usage.cached_tokens": group.num_cached_tokens,
            "gen_ai.latency.e2e": now - arrival,
            "looseleaf.num_preemptions": group.num_preemptions,
        }
        if params.max_tokens is not None:
            self.attributes["gen_ai.request.max_tokens"] = params.max_tokens
        if scheduled is not None:
            self.attributes["gen_ai.latency.time_in_queue"] = scheduled - arrival
        if first is not None and last is not None:
            self.attributes["gen_ai.latency.time_to_first_token"] = first - arrival
            self.attributes["gen_ai.latency.time_in_model_decode"] = last - first
            if scheduled is not None:
                self.attributes["gen_ai.latency.time_in_model_prefill"] = first - scheduled
                self.attributes["gen_ai.latency.time_in_model_inference"] = last - scheduled


def _url(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(
            f"--otlp-traces-endpoint is {endpoint!r}, but it must be a URL of http or https, like "
            "http://localhost:4318/v1/traces: spans are sent as OTLP over HTTP, not over gRPC"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _provider(url: str) -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "traces need the package opentelemetry-exporter-otlp-proto-http: run "
            "`pip install 'looseleaf[otel]'`, or leave out --otlp-traces-endpoint"
        ) from None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "looseleaf"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider
