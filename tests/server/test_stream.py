"""Server-sent events of both endpoints."""

import json
from collections import defaultdict
from typing import Any

import pytest

USER = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "tiny", "messages": USER},
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
}


def frames(server: Any, path: str, **extra: Any) -> list[Any]:
    """The decoded data of each event; "[DONE]" as it is."""
    body = {**BODIES[path], "max_tokens": 5, "stream": True, **extra}
    with server.http().stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = answer.read().decode()
    events = text.split("\n\n")
    assert events.pop() == ""
    data = [event.removeprefix("data: ") for event in events]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(choice: dict[str, Any]) -> str:
    return str(choice.get("text", choice.get("delta", {}).get("content", "")))


paths = pytest.mark.parametrize("path", list(BODIES))


@paths
def test_c087_c088_one_finish_reason_at_the_end(server: Any, path: str) -> None:
    *chunks, done = frames(server, path)
    assert done == "[DONE]"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == (
        "vwxyz" if "chat" in path else "defgh"
    )


@pytest.mark.parametrize("extra", [{}, {"stop": "xy"}, {"stop_token_ids": [ord("y")]}])
@paths
def test_c088_every_way_to_end_has_one_finish_chunk(
    server: Any, path: str, extra: dict[str, Any]
) -> None:
    *chunks, done = frames(server, path, max_tokens=40, **extra)
    assert done == "[DONE]"
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert [r for r in reasons if r is not None] == ["stop" if extra else "length"]


def test_the_first_chat_chunk_has_the_role(server: Any) -> None:
    first, *rest = frames(server, "/v1/chat/completions")
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in c["choices"][0]["delta"] for c in rest if c != "[DONE]")


@paths
def test_c090_c091_usage_only_when_asked_for(server: Any, path: str) -> None:
    for extra in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        *chunks, _ = frames(server, path, **extra)
        assert all("usage" not in chunk for chunk in chunks)
        assert all(chunk["choices"] for chunk in chunks)
    *chunks, last, done = frames(server, path, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@paths
def test_continuous_usage(server: Any, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = frames(server, path, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert last["usage"]["completion_tokens"] == counts[-1] == 5


@paths
def test_stream_options_need_a_stream(server: Any, path: str) -> None:
    body = {**BODIES[path], "stream_options": {"include_usage": True}}
    answer = server.http().post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


def test_c093_samples_are_interleaved_under_their_index(server: Any) -> None:
    client = server.client()
    arguments: Any = {
        "model": "tiny",
        "messages": USER,
        "n": 3,
        "seed": 7,
        "max_tokens": 12,
    }
    whole = client.chat.completions.create(**arguments)
    texts: dict[int, str] = defaultdict(str)
    order, reasons = [], []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        order.append(choice.index)
        if choice.finish_reason is not None:
            reasons.append((choice.index, choice.finish_reason))
    assert sorted(reasons) == [(0, "length"), (1, "length"), (2, "length")]
    assert dict(texts) == {c.index: c.message.content for c in whole.choices}
    assert order != sorted(order)


def test_c093_several_prompts_with_several_samples(server: Any) -> None:
    client = server.client()
    arguments: Any = {"model": "tiny", "prompt": ["hi", "there"], "n": 2, "seed": 7}
    whole = client.completions.create(**arguments)
    texts: dict[int, str] = defaultdict(str)
    for chunk in client.completions.create(**arguments, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert dict(texts) == {choice.index: choice.text for choice in whole.choices}
    assert sorted(texts) == [0, 1, 2, 3]


def test_c065_no_part_of_a_stop_string_is_streamed(server: Any) -> None:
    *chunks, _ = frames(server, "/v1/completions", max_tokens=40, stop=["jklm"])
    pieces = [text_of(chunk["choices"][0]) for chunk in chunks]
    assert "".join(pieces) == "defghi"
    assert chunks[-1]["choices"][0]["stop_reason"] == "jklm"


def test_c082_a_character_is_streamed_whole(start_server: Any) -> None:
    data = "žš한😀".encode()
    server = start_server(
        next_token=lambda request_id, position: data[position - 3], step_seconds=0.01
    )
    *chunks, _ = frames(server, "/v1/completions", max_tokens=len(data))
    pieces = [text_of(chunk["choices"][0]) for chunk in chunks]
    assert [piece for piece in pieces if piece] == list("žš한😀")


def test_logprobs_come_with_every_token(start_server: Any) -> None:
    data = "a😀b".encode()
    server = start_server(next_token=lambda request_id, position: data[position % len(data)])
    chunks = frames(server, "/v1/chat/completions", max_tokens=6, logprobs=True, top_logprobs=1)
    entries = [
        entry
        for chunk in chunks[:-1]
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert len(entries) == 6
    assert sorted(b for entry in entries for b in entry["bytes"]) == sorted(data)
    lists = frames(server, "/v1/completions", max_tokens=6, logprobs=0)
    tokens = [
        token
        for chunk in lists[:-1]
        if chunk["choices"][0]["logprobs"]
        for token in chunk["choices"][0]["logprobs"]["tokens"]
    ]
    assert sorted(tokens) == sorted(["a", "b", *(f"bytes:\\x{b:02x}" for b in "😀".encode())])


@paths
def test_an_engine_failure_ends_the_stream_with_an_error(server: Any, path: str) -> None:
    server.dead = True
    server.executor.seconds = 0.01
    body = {**BODIES[path], "max_tokens": 400, "stream": True}
    lines = []
    with server.http().stream("POST", path, json=body) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) == 5:
                server.executor.failure = RuntimeError("secret detail")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert events[-1]["error"]["type"] == "server_error"
    assert "secret" not in lines[-2]
    client = server.http()
    assert client.get("/health").status_code == 503
    assert client.get("/v1/models").status_code == 200
    refused = client.post(path, json=BODIES[path])
    assert refused.status_code == 503
    assert "secret" not in refused.text
    assert server.metric("vllm:request_success_total", finished_reason="error") == 1


def test_an_engine_failure_ends_a_whole_answer_with_an_error(
    server: Any, chat_body: dict[str, Any]
) -> None:
    server.dead = True
    server.executor.failure = RuntimeError("secret detail")
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2}
    answer = server.http().post("/v1/completions", json=body)
    assert answer.status_code == 503
    assert "secret" not in answer.text
    assert server.metric("vllm:request_success_total", finished_reason="error") == 4


def test_a_slow_reader_gets_fewer_and_longer_pieces(start_server: Any) -> None:
    """All tokens are there before the event loop comes to the second one."""
    server = start_server()
    chunks = frames(server, "/v1/completions", max_tokens=500)[:-1]
    text = "".join(text_of(chunk["choices"][0]) for chunk in chunks)
    assert len(text) == 500
    assert len(chunks) < 500
    assert server.metric("vllm:generation_tokens_total") == 500
    assert server.metric("vllm:inter_token_latency_seconds_count") == 499
