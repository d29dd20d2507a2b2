"""Spans for OpenTelemetry: what a real receiver of OTLP over HTTP is sent by a real server."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from looseleaf.core.errors import ConfigError
from looseleaf.server.tracing import Tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """A receiver of OTLP over HTTP, as much of one as is needed here."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.paths: set[str] = set()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.take(self.path, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({a.key: a.value.string_value for a in one.resource.attributes})
            for scope in one.scope_spans:
                self.spans.extend(scope.spans)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


def finished(server: Any) -> None:
    """Some answers are complete for their client a moment before their span is made."""
    server.eventually(lambda: not server.context.lifecycle.num_answers, "nothing is left to do")


def test_a_request_is_a_span_of_its_callers_trace(start_server: Any, collector: Any) -> None:
    before = time.time_ns()
    with Tracing(collector.url) as tracing:
        server = start_server(tracing=tracing, step_seconds=0.002)
        body = {"model": "tiny", "prompt": [1] * 10, "max_tokens": 5, "temperature": 0.5}
        server.http().post("/v1/completions", json=body)
        answer = server.http().post(
            "/v1/completions",
            json=body | {"n": 2, "top_p": 0.75},
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"},
        )
        usage = answer.json()["usage"]
        finished(server)
    assert collector.paths == {"/v1/traces"}
    first, second = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert (first.name, first.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
    assert first.trace_id.hex() != TRACE
    assert first.parent_span_id == b""
    assert (second.trace_id.hex(), second.parent_span_id.hex()) == (TRACE, PARENT)
    assert second.trace_state == "a=b"
    assert before < first.start_time_unix_nano < first.end_time_unix_nano < time.time_ns()

    told = attributes(second)
    seconds = {name: told.pop(name) for name in list(told) if ".latency." in name}
    assert told == {
        "gen_ai.request.id": answer.json()["id"],
        "gen_ai.request.n": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.prompt_tokens": 10,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.usage.cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "looseleaf.num_preemptions": 0,
    }
    assert told["gen_ai.usage.cached_tokens"] == 9
    short = {name.rpartition(".")[2]: value for name, value in seconds.items()}
    assert set(short) == {
        *("e2e", "time_to_first_token", "time_in_queue"),
        *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
    }
    assert 0 <= short["time_in_queue"] < short["time_to_first_token"] < short["e2e"] < 5
    assert short["time_in_model_decode"] >= 4 * 0.002
    assert short["time_in_model_inference"] == pytest.approx(
        short["time_in_model_prefill"] + short["time_in_model_decode"]
    )
    lasted = 1e-9 * (second.end_time_unix_nano - second.start_time_unix_nano)
    assert lasted == pytest.approx(short["e2e"], abs=1e-3)
    assert collector.resources[0]["service.name"] == "looseleaf"


def test_each_prompt_has_a_span_and_each_api_too(start_server: Any, collector: Any) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with Tracing(f"{collector.url}/v1/traces") as tracing:
        server = start_server(tracing=tracing)
        http = server.http()
        two = http.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]}).json()
        ids = [two["id"], f"{two['id']}-1"]
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert http.post(path, json=chat).status_code == 200
        streamed = http.post("/v1/chat/completions", json=chat | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        refused = http.post("/v1/chat/completions", json=chat | {"temperature": -1})
        assert refused.status_code == 400
        http.post("/tokenize", json={"model": "tiny", "prompt": "a"})
        finished(server)
    assert len(collector.spans) == 5
    assert {attributes(span)["gen_ai.request.id"] for span in collector.spans} >= set(ids)


def test_a_client_that_leaves_and_an_engine_that_dies(start_server: Any, collector: Any) -> None:
    body = {"model": "tiny", "prompt": [1] * 10, "max_tokens": 400, "stream": True}
    with Tracing(collector.url) as tracing:
        server = start_server(tracing=tracing, step_seconds=0.005)
        with server.http().stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        server.check_idle()
        server.dead = True
        server.executor.failure = RuntimeError("broken on purpose")
        server.http().post("/v1/completions", json=body)
        finished(server)
    left, died = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert attributes(left)["gen_ai.response.finish_reasons"] == ["abort"]
    assert left.status.code == Status.STATUS_CODE_UNSET
    assert attributes(died)["gen_ai.response.finish_reasons"] == ["error"]
    assert died.status.code == Status.STATUS_CODE_ERROR


@pytest.mark.parametrize("parent", ["", "00-xyz-1-01", "\x80", f"00-{'0' * 32}-{PARENT}-01"])
def test_a_parent_that_is_none(start_server: Any, collector: Any, parent: str) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    with Tracing(collector.url) as tracing:
        headers = {"traceparent": parent.encode("latin-1")}
        server = start_server(tracing=tracing)
        answer = server.http().post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        finished(server)
    (span,) = collector.spans
    assert span.parent_span_id == b""


def test_what_the_caller_does_not_record_is_not_sent(start_server: Any, collector: Any) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    with Tracing(collector.url) as tracing:
        server = start_server(tracing=tracing)
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert server.http().post("/v1/completions", json=body, headers=headers).is_success
        finished(server)
    assert collector.spans == []


def test_a_collector_that_is_gone_disturbs_nobody(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    began = time.monotonic()
    with Tracing("http://127.0.0.1:9/v1/traces") as tracing:
        http = start_server(tracing=tracing).http()
        for _ in range(20):
            assert http.post("/v1/completions", json=body).status_code == 200
    assert time.monotonic() - began < 10
    assert not any(record.exc_info for record in caplog.records)


def test_a_span_that_cannot_be_made_fails_no_request(
    start_server: Any, collector: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("looseleaf.server.generation.RequestSpan", lambda *args, **how: 1 / 0)
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    with Tracing(collector.url) as tracing, caplog.at_level(logging.ERROR):
        http = start_server(tracing=tracing).http()
        for _ in range(2):
            assert http.post("/v1/completions", json=body).status_code == 200
    assert sum("a span was not made" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    "endpoint", ["grpc://localhost:4317", "localhost:4317", "", "http://", "http://[x"]
)
def test_endpoints_that_cannot_be(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="must be a URL of http or https"):
        Tracing(endpoint)


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'looseleaf\[otel\]'"):
        Tracing("http://localhost:4318")
