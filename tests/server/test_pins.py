"""Pinned prefixes over HTTP."""

from typing import Any

import pytest

PROMPT = "a beginning of many prompts"


@pytest.fixture
def pinning(start_server: Any) -> Any:
    return start_server(num_blocks=64, num_pinnable=16, max_model_len=128)


def pin(server: Any, **fields: Any) -> Any:
    return server.http().post("/v1/cache/pins", json={"model": "tiny", **fields})


def cached(server: Any, prompt: str) -> int:
    answer = server.http().post(
        "/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 1}
    )
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_pins_are_made_listed_and_deleted(pinning: Any) -> None:
    client = pinning.http()
    answer = pin(pinning, prompt=PROMPT, ttl=60)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["num_tokens"] == len(PROMPT) + 1
    assert made["num_blocks"] == 7
    assert 0 < made["expires_in"] <= 60
    (listed,) = client.get("/v1/cache/pins").json()["data"]
    assert listed["id"] == made["id"]
    for i in range(20):
        cached(pinning, f"{i} something else that takes the place of what was there before it")
    assert cached(pinning, PROMPT + " and more") == len(PROMPT) + 1
    gone = client.delete(f"/v1/cache/pins/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "cache.pin", "deleted": True}
    assert client.get("/v1/cache/pins").json()["data"] == []
    again = client.delete(f"/v1/cache/pins/{made['id']}")
    assert again.status_code == 404
    assert "no such pin" in again.json()["error"]["message"]


def test_messages_are_pinned_as_chats_begin(pinning: Any) -> None:
    messages = [{"role": "system", "content": "be brief"}]
    made = pin(pinning, messages=messages).json()
    assert made["expires_in"] is None
    answer = pinning.http().post(
        "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [*messages, {"role": "user", "content": "hello"}],
            "max_tokens": 1,
        },
    )
    found = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == made["num_tokens"]
    pinning.http().delete(f"/v1/cache/pins/{made['id']}")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "give a prompt or messages"),
        ({"prompt": "x", "messages": []}, 400, "give a prompt or messages"),
        ({"prompt": ["x", "y"]}, 400, "one request pins one prompt"),
        ({"prompt": "x", "ttl": 0}, 400, "ttl is 0"),
        ({"prompt": "x" * 100}, 400, "26 KV blocks would be pinned, but at most 16"),
        ({"prompt": "x", "model": "other"}, 404, "does not exist here"),
        ({"prompt": "x", "cache_salt": ""}, 400, "cache_salt has 0 characters"),
    ],
)
def test_what_cannot_be_pinned(
    pinning: Any, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = pin(pinning, **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert pinning.http().get("/v1/cache/pins").json()["data"] == []


def test_a_salt_keeps_pins_apart(pinning: Any) -> None:
    made = pin(pinning, prompt=PROMPT, cache_salt="tenant").json()
    assert cached(pinning, PROMPT + "!") == 0
    pinning.http().delete(f"/v1/cache/pins/{made['id']}")
