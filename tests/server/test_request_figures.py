"""What answers tell of their request: times, cached tokens, preemptions, why a prompt was not
found; and how busy the server is."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from looseleaf.server.replies import ReplySettings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    COMPLETIONS: {"model": "tiny", "prompt": "hello there", "max_tokens": 5},
}
FIGURES = {
    *("queue_ms", "prefill_ms", "decode_ms", "total_ms", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "preemptions", "prefix_misses"),
}
paths = pytest.mark.parametrize("path", list(BODIES))


def ask(server: Any, path: str, **fields: Any) -> Any:
    answer = server.http().post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    return answer


def stream(server: Any, path: str, **fields: Any) -> list[Any]:
    text = ask(server, path, stream=True, **fields).text
    *data, done = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


@paths
def test_figures_of_a_request(start_server: Any, path: str) -> None:
    server = start_server(step_seconds=0.01)
    first, second = (ask(server, path, metrics=True).json() for _ in range(2))
    for answer in (first, second):
        figures, usage = answer["metrics"], answer["usage"]
        assert set(figures) == FIGURES
        assert figures["prompt_tokens"] == usage["prompt_tokens"]
        assert figures["completion_tokens"] == usage["completion_tokens"] == 5
        assert figures["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert figures["preemptions"] == 0
        assert 0 <= figures["queue_ms"] < 10_000
        assert 5 < figures["prefill_ms"] < 10_000
        assert 30 < figures["decode_ms"] < 10_000
        parts = figures["queue_ms"] + figures["prefill_ms"] + figures["decode_ms"]
        assert figures["total_ms"] == pytest.approx(parts, abs=0.01)
    missed = first["usage"]["prompt_tokens"] - 1
    assert first["metrics"]["prefix_misses"] == [
        {"reason": "first_seen", "position": 0, "tokens": missed}
    ]
    assert second["metrics"]["cached_tokens"] == missed
    assert second["metrics"]["prefix_misses"] == [None]


@paths
def test_only_where_they_are_asked_for(start_server: Any, path: str) -> None:
    server = start_server(replies=ReplySettings(timings=True))
    answer = ask(server, path).json()
    assert "metrics" not in answer
    assert "timings" in answer
    assert not any("metrics" in chunk for chunk in stream(server, path))


@paths
@pytest.mark.parametrize("with_usage", [False, True])
def test_the_last_chunk_of_a_stream_has_them(server: Any, path: str, with_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    chunks = stream(server, path, metrics=True, n=3, **options)
    *others, last = chunks
    assert not any("metrics" in chunk for chunk in others)
    assert set(last["metrics"]) == FIGURES
    assert last["metrics"]["completion_tokens"] == 15
    assert len(last["metrics"]["prefix_misses"]) == 1


def test_each_prompt_has_its_miss(server: Any) -> None:
    ask(server, COMPLETIONS, prompt=list(range(1, 21)))
    prompts = [list(range(1, 21)), [*range(1, 11), *range(50, 60)], [9] * 6, [7]]
    misses = ask(server, COMPLETIONS, prompt=prompts, metrics=True).json()["metrics"][
        "prefix_misses"
    ]
    assert misses == [
        None,
        {"reason": "diverged", "position": 10, "tokens": 9},
        {"reason": "first_seen", "position": 0, "tokens": 5},
        {"reason": "too_short", "position": 0, "tokens": 0},
    ]


def test_preemptions_of_a_request(start_server: Any) -> None:
    server = start_server(num_blocks=16, step_seconds=0.001)
    prompts = [[i] * 8 for i in range(1, 5)]
    figures = ask(server, COMPLETIONS, prompt=prompts, max_tokens=24, metrics=True).json()[
        "metrics"
    ]
    assert figures["preemptions"] == server.metric("vllm:num_preemptions_total") > 0
    assert server.metric("vllm:request_num_preemptions_sum") == figures["preemptions"]
    assert server.metric("vllm:request_num_preemptions_count") == 4


def test_a_beam_search_has_figures_too(start_server: Any) -> None:
    server = start_server(next_token=None)
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 3, "temperature": 0}
    figures = ask(server, COMPLETIONS, metrics=True, **fields).json()["metrics"]
    assert figures["prefix_misses"][0]["reason"] == "first_seen"
    assert figures["total_ms"] >= figures["queue_ms"] >= 0


def test_the_document_describes_them(server: Any) -> None:
    schemas = server.http().get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["RequestFigures"]["properties"]) == FIGURES
    told = [name for name, schema in schemas.items() if "metrics" in schema.get("properties", {})]
    assert {name.rpartition(".")[2] for name in told} == {
        *("ChatRequest", "CompletionRequest", "ChatCompletion", "Completion")
    }


@paths
@pytest.mark.parametrize("streamed", [False, True])
def test_load_is_told_in_a_header_to_who_asks(server: Any, path: str, streamed: bool) -> None:
    def header(asked: str | None) -> str | None:
        headers = {} if asked is None else {"endpoint-load-metrics-format": asked}
        body = {**BODIES[path], "stream": streamed}
        answer = server.http().post(path, json=body, headers=headers)
        assert answer.status_code == 200
        found: str | None = answer.headers.get("endpoint-load-metrics")
        return found

    assert header(None) is None
    assert header("PROTOBUF") is None
    told = header("JSON")
    assert told is not None
    kind, _, report = told.partition(" ")
    assert kind == "JSON"
    metrics = json.loads(report)["named_metrics"]
    assert set(metrics) == {
        *("kv_cache_usage_perc", "num_requests_waiting", "num_requests_running")
    }
    assert 0 <= metrics["kv_cache_usage_perc"] <= 1
    told = header("text")
    assert told is not None
    assert told.startswith("TEXT named_metrics.kv_cache_usage_perc=0")
    assert ", named_metrics.num_requests_waiting=0" in told


def test_the_load_is_that_of_the_moment(start_server: Any) -> None:
    server = start_server(max_num_seqs=1, step_seconds=0.01)
    client, asks = server.http(), {"endpoint-load-metrics-format": "JSON"}

    def load() -> Any:
        told = client.get("/version", headers=asks).headers["endpoint-load-metrics"]
        return json.loads(told.removeprefix("JSON "))["named_metrics"]

    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(ask, server, COMPLETIONS, prompt=[i] * 8, max_tokens=40)
            for i in range(1, 4)
        ]
        server.eventually(lambda: load()["num_requests_waiting"] == 2, "two wait")
        assert load()["num_requests_running"] == 1
        assert 2 / 256 <= load()["kv_cache_usage_perc"] + 1e-5 <= 13 / 256
        for future in futures:
            future.result()
    server.eventually(lambda: load()["num_requests_running"] == 0, "none runs")
