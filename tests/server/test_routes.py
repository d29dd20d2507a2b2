"""The small routes."""

import logging
import re
from typing import Any

import pytest

import looseleaf


def test_models(start_server: Any) -> None:
    server = start_server(model_names=("tiny", "org/alias"))
    models = server.client().models.list().data
    assert [model.id for model in models] == ["tiny", "org/alias"]
    card = server.http().get("/v1/models/org/alias").json()
    assert card["object"] == "model"
    assert card["owned_by"] == "looseleaf"
    assert card["root"] == "tiny"
    assert card["max_model_len"] == 512
    assert isinstance(card["created"], int)
    assert server.client().models.retrieve("tiny").id == "tiny"
    missing = server.http().get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    completion = server.client().completions.create(model="org/alias", prompt="x")
    assert completion.model == "org/alias"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]
)
def test_health_is_empty(server: Any, method: str, path: str) -> None:
    answer = server.http().request(method, path)
    assert answer.status_code == 200
    assert answer.content == b""


def test_version(server: Any) -> None:
    assert server.http().get("/version").json() == {"version": looseleaf.__version__}


def test_the_start_is_logged_in_two_lines(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = start_server()
    names = ("looseleaf", "uvicorn")
    line, limits = [r.getMessage() for r in caplog.records if r.name.startswith(names)]
    assert "tiny" in line
    assert server.url in line
    assert str(server.context.memory) in line
    assert "no API keys" in limits
    assert f"at most {server.context.gate.max_requests} requests wait" in limits


@pytest.mark.parametrize("on", [False, True])
def test_requests_are_logged_if_asked_for(
    start_server: Any, caplog: pytest.LogCaptureFixture, on: bool
) -> None:
    server = start_server(access_log=on)
    caplog.set_level(logging.INFO, "looseleaf")
    client = server.http()
    client.get("/health", headers={"X-Request-Id": "mine"})
    client.get("/v1/models/no%0Athing", params={"secret": "x"})

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "looseleaf.server.observed"]

    if not on:
        assert not lines()
        return
    # A line is written when its answer has been sent, which the client may know before.
    server.eventually(lambda: len(lines()) == 2, "both lines are written")
    first, second = lines()
    assert re.fullmatch(r"GET /health 200 \d+ ms 'mine'", first)
    assert re.fullmatch(r"GET /v1/models/no\\nthing 404 \d+ ms -", second)
