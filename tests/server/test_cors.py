"""Pages of other origins: none by default, those that are named if any are."""

from typing import Any

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.server.keys import KeyRing, Tenant
from looseleaf.server.limits import Cors

CHAT = "/v1/chat/completions"
ORIGIN = "https://chat.example.org"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}


@pytest.fixture
def open_server(start_server: Any) -> Any:
    keys = KeyRing([("sk-1", Tenant("one"))])
    server = start_server(keys=keys, cors=Cors(origins=(ORIGIN,)))
    server.http().headers["x-api-key"] = "sk-1"
    return server


def test_c161_a_named_origin_may_ask(open_server: Any, chat_body: Any) -> None:
    client = open_server.http()
    answer = client.post(CHAT, json=chat_body, headers={"origin": ORIGIN})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in answer.headers
    other = client.post(CHAT, json=chat_body, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_c161_a_preflight_needs_no_key_and_a_refusal_can_be_read(open_server: Any) -> None:
    client = open_server.http()
    del client.headers["x-api-key"]
    answer = client.options(CHAT, headers={"origin": ORIGIN, **PREFLIGHT})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    evil = client.options(CHAT, headers={"origin": "https://evil.example", **PREFLIGHT})
    assert evil.status_code == 400
    assert "access-control-allow-origin" not in evil.headers
    refused = client.post(CHAT, json={}, headers={"origin": ORIGIN})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    client.headers["x-api-key"] = "sk-1"


def test_c161_credentials_are_not_for_everybody() -> None:
    with pytest.raises(ConfigError, match="name the origins"):
        Cors(origins=("*",), credentials=True)
