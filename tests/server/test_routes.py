"""The small routes."""

import logging
from typing import Any

import pytest


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
    assert set(server.http().get("/version").json()) == {"version"}


def test_the_start_is_logged_in_one_line(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "looseleaf")
    server = start_server()
    (line,) = [r.getMessage() for r in caplog.records if r.name == "looseleaf.server.run"]
    assert "tiny" in line
    assert server.url in line
    assert str(server.context.memory) in line
