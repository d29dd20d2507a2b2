"""/v1/chat/completions, with whole answers."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from looseleaf.core.request import FinishReason
from looseleaf.core.step import Update

USER = [{"role": "user", "content": "hi"}]


def test_an_answer_has_the_openai_form(server: Any) -> None:
    completion = server.client().chat.completions.create(model="tiny", messages=USER, max_tokens=5)
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "tiny"
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert choice.message.role == "assistant"
    assert len(choice.message.content or "") == 5
    # <|bos|>[user]hi\n[assistant]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 1 + len("[user]hi\n[assistant]")
    assert completion.usage.completion_tokens == 5
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 5
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


def test_c001_a_repeated_prompt_reports_all_but_its_last_token_as_cached(server: Any) -> None:
    client = server.client()
    first, second = (
        client.chat.completions.create(model="tiny", messages=USER, max_tokens=4, seed=1)
        for _ in range(2)
    )
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1
    assert second.choices[0].message.content == first.choices[0].message.content


def test_c024_c094_n_samples_all_come_and_in_order(server: Any) -> None:
    client = server.client()

    def ask(_: int) -> Any:
        return client.chat.completions.create(model="tiny", messages=USER, max_tokens=6, n=4)

    with ThreadPoolExecutor(10) as pool:
        completions = list(pool.map(ask, range(10)))
    for completion in completions:
        assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
        texts = [choice.message.content for choice in completion.choices]
        assert len(set(texts)) == 4
        assert completion.usage.completion_tokens == 24


def test_c076_chat_without_max_tokens_goes_to_the_end_of_the_context(server: Any) -> None:
    for extra in ({}, {"max_tokens": None}, {"max_completion_tokens": None}):
        body = {"model": "tiny", "messages": USER, **extra}
        answer = server.http().post("/v1/chat/completions", json=body).json()
        assert answer["usage"]["total_tokens"] == 512
        assert answer["choices"][0]["finish_reason"] == "length"


def test_c077_max_tokens_beyond_the_context_is_clamped(server: Any) -> None:
    completion = server.client().chat.completions.create(
        model="tiny", messages=USER, max_tokens=10**9
    )
    assert completion.usage.total_tokens == 512
    assert completion.choices[0].finish_reason == "length"


def test_c113_max_completion_tokens_wins(server: Any) -> None:
    create = server.client().chat.completions.create
    alone = create(model="tiny", messages=USER, max_completion_tokens=8)
    both = create(model="tiny", messages=USER, max_completion_tokens=8, max_tokens=20)
    for completion in (alone, both):
        assert completion.usage.completion_tokens == 8
        assert completion.choices[0].finish_reason == "length"


def test_an_end_token_stops_and_is_not_shown(start_server: Any) -> None:
    server = start_server(next_token=lambda request_id, position: 257 if position > 25 else 97)
    body = {"model": "tiny", "messages": USER}
    answer = server.http().post("/v1/chat/completions", json=body).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert set(choice["message"]["content"]) == {"a"}
    assert answer["usage"]["completion_tokens"] == len(choice["message"]["content"]) + 1


def test_c064_ignore_eos_goes_on_and_stop_token_ids_still_stop(start_server: Any) -> None:
    server = start_server(next_token=lambda request_id, position: 257 if position < 30 else 98)
    body = {"model": "tiny", "messages": USER, "ignore_eos": True, "max_tokens": 200}
    client = server.http()
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    answer = client.post("/v1/chat/completions", json={**body, "stop_token_ids": [98]}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == 98
    assert answer["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize("stop", ["fgh", ["xyz", "fgh"]])
@pytest.mark.parametrize("included", [False, True])
def test_c065_a_stop_string_ends_the_text(server: Any, stop: Any, included: bool) -> None:
    body = {
        "model": "tiny",
        "messages": USER,
        "stop": stop,
        "include_stop_str_in_output": included,
        "max_tokens": 200,
    }
    answer = server.http().post("/v1/chat/completions", json=body).json()
    (choice,) = answer["choices"]
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] in ("fgh", "xyz")
    assert text.endswith(choice["stop_reason"]) is included
    assert len(text) < 26


def test_32_chats_at_once_share_their_system_prompt(start_server: Any) -> None:
    server = start_server(num_blocks=512, step_seconds=0.001)
    client = server.client()
    system = "You are a helpful assistant. " * 6

    def ask(i: int) -> Any:
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"question {i}"},
        ]
        return client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)

    with ThreadPoolExecutor(32) as pool:
        completions = list(pool.map(ask, range(32)))
    cached = sorted(c.usage.prompt_tokens_details.cached_tokens for c in completions)
    assert cached[0] == 0
    assert all(tokens >= len(system) for tokens in cached[1:])
    assert sum(cached) == server.metric("vllm:prefix_cache_hits_total")


def test_logprobs(server: Any, chat_body: Any) -> None:
    answer = server.client().chat.completions.create(
        model="tiny", messages=USER, max_tokens=3, logprobs=True, top_logprobs=2
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert entry.logprob == -1.0
        assert bytes(entry.bytes).decode() == entry.token
        assert [top.logprob for top in entry.top_logprobs] == [-1.0, -2.0]
    refused = server.http().post("/v1/chat/completions", json={**chat_body, "top_logprobs": 2})
    assert refused.json()["error"]["param"] == "top_logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_c156_a_sample_that_the_engine_gives_up_is_an_error(
    server: Any, chat_body: Any, stream: bool
) -> None:
    server.executor.gate.clear()

    def give_up() -> None:
        def read(engine: Any) -> Any:
            return list(engine.scheduler.requests)

        server.executor.gate.set()
        for request_id in server.call(read):
            update = Update(request_id, (), (), (), FinishReason.ERROR)
            server.loop.call_soon_threadsafe(server.context.service._deliver, [update])

    server.executor.seconds = 0.02
    body = {**chat_body, "max_tokens": 200, "stream": stream}
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.http().post, "/v1/chat/completions", json=body)
        server.eventually(lambda: bool(server.context.service._streams), "it was submitted")
        give_up()
        answer = future.result()
    last = answer.text.strip().rpartition("\n")[2]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    assert answer.status_code == (200 if stream else 500)
    assert server.metric("vllm:request_success_total", finished_reason="error") == 1
