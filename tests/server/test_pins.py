"""Pinned prefixes over HTTP."""

from typing import Any

import pytest

from looseleaf.server.keys import KeyLimits, KeyRing, Tenant
from looseleaf.server.limits import Limits

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


@pytest.fixture
def isolated(start_server: Any) -> Any:
    """Of 16 blocks that may be pinned, a may pin 4 and b may pin 12."""
    keys = [("sk-a", Tenant("a")), ("sk-b", Tenant("b", KeyLimits(weight=3)))]
    return start_server(
        num_blocks=64,
        num_pinnable=16,
        max_model_len=128,
        keys=KeyRing(keys),
        limits=Limits(isolate_cache=True),
    )


def as_key(server: Any, key: str) -> Any:
    server.http().headers["x-api-key"] = key
    return server


def pins_of(server: Any, key: str) -> list[str]:
    data = as_key(server, key).http().get("/v1/cache/pins").json()["data"]
    return [pin["id"] for pin in data]


def test_isolated_keys_have_pins_of_their_own(isolated: Any) -> None:
    text = "shared text"  # 12 tokens with the one to begin with, in 3 blocks
    theirs = pin(as_key(isolated, "sk-b"), prompt=text).json()["id"]
    assert (pins_of(isolated, "sk-a"), pins_of(isolated, "sk-b")) == ([], [theirs])
    # A key neither finds what another has pinned, nor can let go of it.
    assert cached(as_key(isolated, "sk-a"), text + " and more") == 0
    assert cached(as_key(isolated, "sk-b"), text + " and more") == len(text) + 1
    gone = as_key(isolated, "sk-a").http().delete(f"/v1/cache/pins/{theirs}")
    assert gone.status_code == 404
    assert "no such pin" in gone.json()["error"]["message"]
    assert pins_of(isolated, "sk-b") == [theirs]
    # The same text, pinned by both, is there twice.
    ours = pin(as_key(isolated, "sk-a"), prompt=text).json()["id"]
    assert isolated.call(lambda engine: len(engine.scheduler.allocator.pinned)) == 6
    assert (pins_of(isolated, "sk-a"), pins_of(isolated, "sk-b")) == ([ours], [theirs])
    for i in range(20):
        cached(isolated, f"{i} something else that takes the place of what was there before it")
    for key, pin_id in (("sk-a", ours), ("sk-b", theirs)):
        assert cached(as_key(isolated, key), text + "!") == len(text) + 1
        gone = isolated.http().delete(f"/v1/cache/pins/{pin_id}")
        assert gone.json()["deleted"]
    assert isolated.call(lambda engine: len(engine.scheduler.allocator.pinned)) == 0


def test_isolated_keys_have_shares_of_what_may_be_pinned(isolated: Any) -> None:
    refused = pin(as_key(isolated, "sk-a"), prompt="x" * 16)
    assert refused.status_code == 400
    message = "5 KV blocks would be pinned by this API key, but at most 4 may be, its share of 16"
    assert message in refused.json()["error"]["message"]
    first = pin(isolated, prompt="x" * 7).json()["id"]
    second = pin(isolated, prompt="y" * 7).json()["id"]
    assert message.replace("5", "6") in pin(isolated, prompt="z" * 7).json()["error"]["message"]
    # What one key has pinned takes nothing from the other.
    theirs = pin(as_key(isolated, "sk-b"), prompt="x" * 47)
    assert theirs.json()["num_blocks"] == 12
    assert pin(isolated, prompt="y").status_code == 400
    isolated.http().delete(f"/v1/cache/pins/{theirs.json()['id']}")
    for pin_id in (first, second):
        as_key(isolated, "sk-a").http().delete(f"/v1/cache/pins/{pin_id}")


def test_keys_that_share_the_cache_share_its_pins(start_server: Any) -> None:
    keys = KeyRing([("sk-a", Tenant("a")), ("sk-b", Tenant("b"))])
    server = start_server(num_blocks=64, num_pinnable=16, max_model_len=128, keys=keys)
    made = pin(as_key(server, "sk-a"), prompt=PROMPT).json()["id"]
    assert pins_of(server, "sk-b") == [made]
    assert cached(server, PROMPT + " and more") == len(PROMPT) + 1
    assert server.http().delete(f"/v1/cache/pins/{made}").json()["deleted"]
