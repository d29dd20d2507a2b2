"""API keys: nobody without one, but those who ask whether the server lives."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.server.keys import KeyLimits, KeyRing, Tenant, key_ring

ALICE, BOB = "sk-alice-0123456789", "sk-bob"
RING = KeyRing([(ALICE, Tenant("alice")), (BOB, Tenant("bob"))])


@pytest.fixture
def guarded(start_server: Any) -> Any:
    server = start_server(keys=RING, access_log=True)
    server.http().headers["authorization"] = f"Bearer {ALICE}"
    return server


def without_key(server: Any) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30)


def test_c153_every_route_is_guarded_but_those_about_life(guarded: Any) -> None:
    routes = guarded.server.config.app.routes
    paths = {route.path for route in routes} | {"/new/route", "/invocations", "/docs"}
    assert len(paths) > 10
    with without_key(guarded) as client:
        for path in paths:
            for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD"):
                answer = client.request(method, path)
                if path == "/studio" and method in ("GET", "HEAD"):  # to a page without content
                    assert answer.status_code == 307
                elif path in ("/health", "/ping", "/ready"):
                    assert answer.status_code in (200, 405), (method, path)
                else:
                    assert answer.status_code == 401, (method, path)
        assert client.get("/ready").status_code == 200


def test_c153_a_refusal_is_in_the_envelope_and_says_what_to_send(guarded: Any) -> None:
    with without_key(guarded) as client:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {ALICE}"},
            {"authorization": ALICE},
            {"authorization": f"Bearer {ALICE}x"},
            {"authorization": f"Bearer {ALICE[:-1]}"},
            {"x-api-key": "wrong"},
            {"x-api-key": "é".encode("latin-1")},
        ):
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert "wrong" not in answer.text
            assert ALICE[:4] not in answer.text


def test_c153_a_body_is_not_read_for_nobody(guarded: Any, chat_body: Any) -> None:
    with without_key(guarded) as client:
        assert client.post("/v1/chat/completions", content=b"{" * 100).status_code == 401
        assert client.post("/v1/chat/completions", json=chat_body).status_code == 401


@pytest.mark.parametrize("key", [ALICE, BOB])
@pytest.mark.parametrize("header", ["authorization", "Bearer", "x-api-key"])
def test_a_key_opens_under_both_spellings(guarded: Any, key: str, header: str) -> None:
    headers = {"x-api-key": key} if header == "x-api-key" else {"authorization": f"bearer {key}"}
    with without_key(guarded) as client:
        assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200


def test_c153_keys_are_not_logged_but_labels_are(
    guarded: Any, chat_body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.http().post("/v1/chat/completions", json=chat_body)
    with without_key(guarded) as client:
        client.get("/v1/models", headers={"x-api-key": "sk-mistaken"})
    guarded.eventually(lambda: " 401 " in caplog.text, "both are logged")
    assert "alice" in caplog.text
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("looseleaf")]
    assert not any("sk-" in line for line in ours)
    assert "sk-" not in repr(guarded.context.keys)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_file_of_keys(tmp_path: Path, suffix: str, nested: bool) -> None:
    entries = [
        {"label": "a", "key": "one", "tokens_per_minute": 1000, "weight": 2},
        {"label": "b", "key": "two", "max_concurrent_requests": 3, "priority": 5},
    ]
    file = tmp_path / f"keys{suffix}"
    file.write_text(json.dumps({"keys": entries} if nested else entries))  # which is YAML too
    ring = key_ring(["zero"], file)
    assert ring.tenant(b"zero") == Tenant("key-1")
    assert ring.tenant(b"one") == Tenant("a", KeyLimits(tokens_per_minute=1000, weight=2))
    assert ring.tenant(b"two") == Tenant("b", KeyLimits(max_concurrent_requests=3, priority=5))
    assert ring.tenant(b"three") is None
    assert len(ring) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "neither YAML nor JSON"),
        ("[]", "no API keys"),
        ("- label: a", "`key`"),
        ("- {label: a, key: SECRET, wieght: 2}", "wieght"),
        ("- {label: a b, key: SECRET}", "label"),
        ("- {label: a, key: SECRET, weight: 0}", "weight is 0"),
        ("- {label: a, key: SECRET, requests_per_minute: 0}", "requests_per_minute is 0"),
        ("- {label: a, key: SECRET}\n- {label: b, key: SECRET}", "twice"),
        ("- {label: a, key: SECRET}\n- {label: a, key: OTHER}", "twice"),
        ("- {label: a, key: ''}", "1 to 512"),
        ("- {label: a, key: 'SECRET '}", "space"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    with pytest.raises(LooseleafError, match=words) as caught:
        key_ring(file=file)
    assert "SECRET" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LooseleafError, match=r"none\.yaml"):
        key_ring(file=tmp_path / "none.yaml")
