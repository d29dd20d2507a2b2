"""What answers tell besides their text."""

import json
import time
from typing import Any

import pytest

from looseleaf.server.details import last_tokens
from looseleaf.server.replies import ReplySettings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    COMPLETIONS: {"model": "tiny", "prompt": "hello", "max_tokens": 5},
}
TIMINGS = {
    *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}
paths = pytest.mark.parametrize("path", list(BODIES))


def ask(server: Any, path: str, **fields: Any) -> Any:
    return server.http().post(path, json={**BODIES[path], **fields})


def stream(server: Any, path: str, **fields: Any) -> list[Any]:
    text = ask(server, path, stream=True, **fields).text
    *data, done = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


@paths
def test_prompt_logprobs_in_the_form_of_vllm(server: Any, path: str) -> None:
    # The second time most of the prompt is found stored.
    for _ in range(2):
        answer = ask(server, path, prompt_logprobs=2, return_token_ids=True).json()
        told = answer if path == CHAT else answer["choices"][0]
        entries, token_ids = told["prompt_logprobs"], told["prompt_token_ids"]
        assert len(entries) == len(token_ids)
        assert entries[0] is None
        for token_id, entry in zip(token_ids[1:], entries[1:], strict=True):
            own = entry[str(token_id)]
            assert own["logprob"] < 0
            assert own["decoded_token"] == chr(token_id) or token_id > 127
            assert {1, 2} <= {other["rank"] for other in entry.values()}
            assert 2 <= len(entry) <= 3
    alone = ask(server, path, prompt_logprobs=0).json()
    found = (alone if path == CHAT else alone["choices"][0])["prompt_logprobs"]
    assert all(len(entry) == 1 for entry in found[1:])


@paths
def test_prompt_logprobs_that_cannot_be(server: Any, path: str) -> None:
    for fields in ({"prompt_logprobs": 1, "stream": True}, {"prompt_logprobs": 21}):
        answer = ask(server, path, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt_logprobs"
    assert ask(server, path, prompt_logprobs=-1).status_code == 400


def test_an_echo_has_as_many_as_were_asked_for(server: Any) -> None:
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 3}
    (choice,) = ask(server, COMPLETIONS, **fields).json()["choices"]
    assert len(choice["prompt_logprobs"][1]) in (3, 4)
    assert len(choice["logprobs"]["top_logprobs"][1]) in (1, 2)


@paths
def test_token_ids(server: Any, path: str) -> None:
    answer = ask(server, path, return_token_ids=True, n=2).json()
    prompt = (answer if path == CHAT else answer["choices"][0])["prompt_token_ids"]
    assert server.context.tokenizer.decode(prompt) == (
        "[user]hi\n[assistant]" if path == CHAT else "hello"
    )
    chunks = stream(server, path, return_token_ids=True, n=2)
    prompts = [
        told["prompt_token_ids"]
        for chunk in chunks
        for told in (chunk, *chunk["choices"])
        if "prompt_token_ids" in told
    ]
    assert prompts == [prompt] * 2
    for choice in answer["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert bytes(choice["token_ids"]).decode() == text
        streamed = [
            token_id
            for chunk in chunks
            for told in chunk["choices"]
            if told["index"] == choice["index"]
            for token_id in told.get("token_ids", [])
        ]
        assert streamed == choice["token_ids"]
    plain = ask(server, path).json()
    assert "token_ids" not in plain["choices"][0]
    assert "prompt_token_ids" not in json.dumps(plain)


def test_tokens_as_ids(server: Any) -> None:
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 2}
    chat = ask(server, CHAT, logprobs=True, top_logprobs=1, **fields).json()
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert entry["token"] == f"token_id:{entry['bytes'][0]}"
        assert entry["top_logprobs"][0]["token"].startswith("token_id:")
    raw = ask(server, COMPLETIONS, logprobs=1, echo=True, **fields).json()["choices"][0]
    assert all(name.startswith("token_id:") for name in raw["logprobs"]["tokens"])
    assert raw["logprobs"]["tokens"][0] == "token_id:256"
    assert all(name.startswith("token_id:") for name in raw["logprobs"]["top_logprobs"][-1])


def test_a_prompt_is_cut_to_its_end(server: Any) -> None:
    def prompt(path: str, **fields: Any) -> str:
        answer = ask(server, path, return_token_ids=True, **fields).json()
        told = answer if path == CHAT else answer["choices"][0]
        assert told["prompt_token_ids"][0] == 256
        return str(server.context.tokenizer.decode(told["prompt_token_ids"]))

    assert prompt(COMPLETIONS, truncate_prompt_tokens=4) == "llo"
    assert prompt(COMPLETIONS, truncate_prompt_tokens=6) == "hello"
    assert prompt(COMPLETIONS, truncate_prompt_tokens=100) == "hello"
    assert prompt(CHAT, truncate_prompt_tokens=5) == "ant]"
    long = {"prompt": "x" * 5000 + "hello", "max_tokens": 5}
    assert prompt(COMPLETIONS, **long, truncate_prompt_tokens=-1).endswith("xhello")
    assert len(prompt(COMPLETIONS, **long, truncate_prompt_tokens=-1)) == 512 - 5 - 1
    echoed = ask(server, COMPLETIONS, truncate_prompt_tokens=3, echo=True).json()
    assert echoed["choices"][0]["text"].startswith("lo")
    for wrong in (0, -2, 513):
        answer = ask(server, COMPLETIONS, truncate_prompt_tokens=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "truncate_prompt_tokens"
    assert last_tokens([1, 2, 3], 2, None) == [2, 3]


@paths
def test_a_clients_id_names_its_answer(server: Any, path: str) -> None:
    prefix = "chatcmpl" if path == CHAT else "cmpl"
    assert ask(server, path, request_id="my-id").json()["id"] == f"{prefix}-my-id"
    assert stream(server, path, request_id="my-id")[0]["id"] == f"{prefix}-my-id"
    for wrong in ("", "x" * 129):
        answer = ask(server, path, request_id=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "request_id"


@paths
def test_timings(start_server: Any, path: str) -> None:
    server = start_server(step_seconds=0.01)
    first, second = (ask(server, path, timings=True).json() for _ in range(2))
    for answer in (first, second):
        timings, usage = answer["timings"], answer["usage"]
        assert set(timings) == TIMINGS
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
        assert timings["predicted_n"] == 5
        assert 5 < timings["prompt_ms"] < 10_000
        assert 30 < timings["predicted_ms"] < 10_000
        assert timings["predicted_per_second"] == pytest.approx(
            5000 / timings["predicted_ms"], rel=1e-6
        )
    assert second["timings"]["prompt_n"] == 1
    assert "timings" not in ask(server, path).json()


def test_timings_of_an_answer_that_is_told_all_at_once(start_server: Any) -> None:
    """The event loop is held up until all five tokens are there."""
    server = start_server(step_seconds=0.02)
    execute = server.executor.execute

    def first_step(step: Any) -> Any:
        server.executor.execute = execute
        server.loop.call_soon_threadsafe(time.sleep, 0.3)
        return execute(step)

    server.executor.execute = first_step
    timings = ask(server, CHAT, timings=True).json()["timings"]
    assert 70 < timings["predicted_ms"] < 10_000


@paths
@pytest.mark.parametrize("include_usage", [False, True])
def test_timings_come_in_the_last_chunk(start_server: Any, path: str, include_usage: bool) -> None:
    server = start_server(replies=ReplySettings(timings=True))
    options = {"include_usage": True} if include_usage else None
    *chunks, last = stream(server, path, n=2, stream_options=options)
    assert last["timings"]["predicted_n"] == 10
    assert not any("timings" in chunk for chunk in chunks)
    assert "timings" in ask(server, path).json()
