"""/tokenize and /detokenize, the routes for operators, and requests cancelled by their ids."""

import threading
from typing import Any

import pytest


def test_a_prompt_there_and_back(server: Any) -> None:
    http = server.http()
    made = http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert made["tokens"] == [256, *"hé".encode()]
    assert (made["count"], made["max_model_len"]) == (4, 512)
    assert made["token_strs"][:2] == ["<|bos|>", "h"]
    plain = http.post("/tokenize", json={"prompt": "h", "add_special_tokens": False}).json()
    assert (plain["tokens"], plain["token_strs"]) == ([104], None)
    assert http.post("/detokenize", json={"tokens": made["tokens"]}).json() == {
        "prompt": "<|bos|>hé"
    }


def test_messages_become_what_a_chat_computes(server: Any, chat_body: dict[str, Any]) -> None:
    made = server.http().post("/tokenize", json={"messages": chat_body["messages"]}).json()
    usage = server.http().post("/v1/chat/completions", json=chat_body).json()["usage"]
    assert made["count"] == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {}, "give a prompt or messages"),
        ("/tokenize", {"prompt": "x", "messages": []}, "give a prompt or messages"),
        ("/tokenize", {"messages": []}, "there are no messages"),
        ("/tokenize", {"prompt": "x", "chat_template": "y"}, "chat_template is not supported"),
        ("/detokenize", {"tokens": [259]}, "not in the vocabulary"),
        ("/detokenize", {"tokens": ["a"]}, "does not fit"),
    ],
)
def test_what_cannot_be_tokenized(server: Any, path: str, body: Any, message: str) -> None:
    answer = server.http().post(path, json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_cache_that_is_reset_finds_nothing(server: Any, chat_body: dict[str, Any]) -> None:
    def cached() -> int:
        answer = server.http().post("/v1/chat/completions", json=chat_body).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    assert cached() > 0
    assert server.http().post("/reset_prefix_cache").status_code == 200
    assert cached() == 0


@pytest.mark.parametrize("route", ["cancel", "abort_requests"])
def test_a_request_is_cancelled_by_its_id(start_server: Any, route: str) -> None:
    server = start_server(step_seconds=0.01)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "request_id": "mine", "n": 2}
    answers: list[Any] = []

    def ask() -> None:
        answers.append(server.http().post("/v1/completions", json=body).json())

    http = server.http()
    thread = threading.Thread(target=ask)
    thread.start()
    server.eventually(lambda: http.get("/load").json()["server_load"] == 1, "it has begun")
    if route == "cancel":
        assert http.post("/v1/requests/cmpl-mine/cancel").json()["cancelled"] is True
    else:
        told = http.post("/abort_requests", json={"request_ids": ["cmpl-mine", "cmpl-other"]})
        assert told.json() == {"num_aborted": 1}
    thread.join(10)
    choices = answers[0]["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort", "abort"]
    assert http.get("/load").json()["server_load"] == 0
    assert http.post("/v1/requests/cmpl-mine/cancel").status_code == 404
