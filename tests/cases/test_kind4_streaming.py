"""Faults of detokenization and streaming, reported against systems like this one."""

import json
import socket
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from looseleaf.core.request import Status
from looseleaf.text.detokenizer import IncrementalDetokenizer

CHAT = "/v1/chat/completions"


def chunks_of(server: Any, body: dict[str, Any]) -> list[Any]:
    """The decoded chunks of a stream; it must end with [DONE]."""
    answer = server.http().post(CHAT, json={**body, "stream": True})
    assert answer.status_code == 200
    *data, done = [event.removeprefix("data: ") for event in answer.text.split("\n\n")[:-1]]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


@pytest.mark.parametrize("text", ["🦉", "Příliš žluťoučký kůň", "한국어 문장", "a🦉b"])
def test_c082_characters_of_several_tokens_are_never_cut(
    start_server: Any, says: Any, chat_body: Any, text: str
) -> None:
    server = start_server(next_token=says(text))  # a token is a byte
    chunks = chunks_of(server, {**chat_body, "max_tokens": 200})
    assert text_of(chunks) == text
    assert not any("\ufffd" in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


def test_c084_a_korean_paragraph_loses_nothing(
    start_server: Any, says: Any, chat_body: Any
) -> None:
    text = "서울의 봄은 짧고 바람이 많다. " * 8
    server = start_server(next_token=says(text), max_model_len=1024, num_blocks=512)
    body = {**chat_body, "max_tokens": 900}
    whole = server.http().post(CHAT, json=body).json()["choices"][0]["message"]["content"]
    assert whole == text_of(chunks_of(server, body)) == text


def test_c086_one_space_is_taken_once_and_none_between_pieces(
    sentencepiece_tokenizer: Any,
) -> None:
    tokenizer = sentencepiece_tokenizer
    token_ids = [
        next(i for i in range(tokenizer.vocab_size) if tokenizer.token_str(i) == piece)
        for piece in ("▁", "▁leading", "▁x")
    ]
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.append([token_id]) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(token_ids) == " leading x"


def test_c087_the_finish_reason_is_there_and_null_until_the_end(
    server: Any, chat_body: Any
) -> None:
    chunks = chunks_of(server, chat_body)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


@pytest.mark.parametrize("n", [1, 3])
def test_c088_one_finish_chunk_for_each_choice_that_ends_by_itself(
    start_server: Any, says: Any, chat_body: Any, n: int
) -> None:
    server = start_server(next_token=says("bye"))
    chunks = chunks_of(server, {**chat_body, "n": n, "max_tokens": 50})
    ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"] is not None]
    assert sorted((end["index"], end["finish_reason"]) for end in ends) == [
        (index, "stop") for index in range(n)
    ]


def test_c090_usage_comes_only_when_asked_for_and_last(server: Any, chat_body: Any) -> None:
    assert not any("usage" in chunk for chunk in chunks_of(server, chat_body))
    *chunks, last = chunks_of(server, {**chat_body, "stream_options": {"include_usage": True}})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5


def test_c091_choices_is_always_a_list(server: Any, chat_body: Any) -> None:
    asked = {"stream_options": {"include_usage": True}}
    for chunk in chunks_of(server, {**chat_body, **asked}):
        assert isinstance(chunk["choices"], list)
    # The official client, which is strict about it.
    stream = server.client().chat.completions.create(**chat_body, **asked, stream=True)
    assert [chunk.choices for chunk in stream][-1] == []


def test_c093_every_chunk_names_its_choice(server: Any, chat_body: Any) -> None:
    body = {**chat_body, "n": 3, "seed": 1}
    whole = server.http().post(CHAT, json=body).json()["choices"]
    texts: dict[int, str] = defaultdict(str)
    for chunk in chunks_of(server, body):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert dict(texts) == {c["index"]: c["message"]["content"] for c in whole}
    assert len(set(texts.values())) == 3


def test_c094_all_samples_come_and_in_order(server: Any, chat_body: Any) -> None:
    client = server.http()

    def ask(_: int) -> Any:
        return client.post(CHAT, json={**chat_body, "n": 4}).json()["choices"]

    with ThreadPoolExecutor(10) as pool:
        for choices in pool.map(ask, range(10)):
            assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
def test_c095_the_work_ends_when_the_client_goes(
    start_server: Any, state: str, stream: bool
) -> None:
    server = start_server(max_num_seqs=1, max_num_batched_tokens=8, step_seconds=0.01)

    def statuses() -> list[Status]:
        return server.call(lambda e: [r.status for r in e.scheduler.requests.values()])

    prompt = [1] * 300 if state == "prefill" else [1, 2, 3]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 200, "stream": stream}
    first = {**body, "stream": False}
    others = 0
    with ThreadPoolExecutor(1) as pool:
        if state == "queued":
            others = 1
            answer = pool.submit(server.http().post, "/v1/completions", json=first)
            server.eventually(lambda: len(statuses()) == 1, "it runs")
        data = json.dumps(body).encode()
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}"
            client.sendall(f"{head}\r\n\r\n".encode() + data)
            server.eventually(lambda: len(statuses()) == 1 + others, "it is there")
            if state == "decode":
                time.sleep(0.1)
        server.eventually(lambda: len(statuses()) == others, "it has ended", 2)
        if others:
            assert answer.result().json()["usage"]["completion_tokens"] == 200
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 1
