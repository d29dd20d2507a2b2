"""Ollama's /api, as front-ends made for it use it."""

import json
from typing import Any

import pytest

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "get_weather"}}


def post(server: Any, path: str = "/api/chat", **fields: Any) -> Any:
    if path == "/api/chat":
        fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return server.http().post(path, json={"model": "tiny:latest", **fields})


def lines(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(text) for text in answer.text.splitlines()]


def test_chat(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says("Hello"), step_seconds=0.005)
    *pieces, last = lines(post(server))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello"
    assert not any(piece["done"] for piece in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 6)
    assert last["total_duration"] >= last["eval_duration"] > 0
    whole = post(server, stream=False, options={"num_predict": 3, "num_ctx": 9}).json()
    assert (whole["message"], whole["done_reason"]) == (
        {"role": "assistant", "content": "Hel"},
        "length",
    )
    assert whole["model"] == "tiny:latest"
    assert post(server, messages=[]).json()["done_reason"] == "load"


def test_generate(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says("Hello"))
    *pieces, _ = lines(post(server, "/api/generate", prompt="x"))
    assert "".join(piece["response"] for piece in pieces) == "Hello"
    raw = post(server, "/api/generate", prompt="xy", raw=True, stream=False).json()
    assert (raw["response"], raw["prompt_eval_count"]) == ("Hello", 3)
    told = post(server, "/api/generate", prompt="xy", system="z", stream=False).json()
    assert told["prompt_eval_count"] > 3


def test_tools(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALL), max_model_len=2048, num_blocks=1024)
    call, last = lines(post(server, tools=[TOOL]))
    asked = call["message"]["tool_calls"]
    assert asked == [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]
    assert last["done_reason"] == "stop"
    messages = [
        {"role": "user", "content": "warm?"},
        {"role": "assistant", "content": "", "tool_calls": asked},
        {"role": "tool", "content": "20", "tool_name": "get_weather"},
    ]
    assert post(server, tools=[TOOL], messages=messages).status_code == 200


def test_what_there_is(server: Any) -> None:
    http = server.http()
    (tag,) = http.get("/api/tags").json()["models"]
    assert tag["name"] == "tiny:latest"
    assert http.get("/api/ps").json()["models"][0]["name"] == tag["name"]
    assert http.post("/api/show", json={"model": tag["name"]}).json()["details"] == tag["details"]
    assert http.get("/api/version").json().keys() == {"version"}


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/api/chat", {"model": "other"}, 404, "does not exist"),
        ("/api/show", {"model": "other"}, 404, "does not exist"),
        ("/api/chat", {"format": "xml"}, 400, "format must be json"),
        ("/api/generate", {"prompt": "x", "images": ["y"]}, 400, "images is not supported"),
        ("/api/generate", {"prompt": "x", "logprobs": True}, 400, "ask /v1/chat/completions"),
        ("/api/chat", {"top_logprobs": 3}, 400, "top_logprobs is not told here"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x", "images": ["y"]}]},
            400,
            "text only",
        ),
        ("/api/chat", {"options": {"temperature": -1}}, 400, "temperature"),
    ],
)
def test_errors(server: Any, path: str, fields: Any, status: int, message: str) -> None:
    answer = post(server, path, **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]
