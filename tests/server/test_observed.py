"""Every HTTP request is counted, and logged where that is asked for, without what was said."""

import json
import logging
from typing import Any

import pytest

from looseleaf.commands.logs import JsonFormatter
from looseleaf.server.keys import KeyRing, Tenant

KEY = "sk-alice-0123456789"
COMPLETIONS = "/v1/completions"


def counted(server: Any) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["method"], sample.labels["handler"], sample.labels["status"]): sample.value
        for family in server.context.metrics.registry.collect()
        if family.name == "http_requests"
        for sample in family.samples
        if sample.name == "http_requests_total"
    }


def test_requests_are_counted_by_route_and_kind_of_status(start_server: Any) -> None:
    server = start_server(keys=KeyRing([(KEY, Tenant("alice"))]))
    client = server.http()
    client.post(COMPLETIONS, json={})
    client.headers["authorization"] = f"Bearer {KEY}"
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    client.post(COMPLETIONS, json=body)
    client.post(COMPLETIONS, json=body | {"stream": True})
    client.post(COMPLETIONS, content=b"{")
    client.get(COMPLETIONS)
    client.get("/v1/models/no/such")
    for path in ("/what/is/this", "/nor/this", "/health", "/metrics"):
        client.get(path)
    # It is counted when all of it has been sent, which the client may know before.
    server.eventually(lambda: sum(counted(server).values()) == 8, "all are counted")
    assert counted(server) == {
        ("POST", COMPLETIONS, "4xx"): 2,
        ("POST", COMPLETIONS, "2xx"): 2,
        ("GET", COMPLETIONS, "4xx"): 1,
        ("GET", "/v1/models/{name:path}", "4xx"): 1,
        ("GET", "none", "4xx"): 2,
    }
    assert server.metric("http_requests_total", handler=COMPLETIONS, status="2xx") == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_a_requests_record_is_one_json_object_without_its_text(
    start_server: Any, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    server = start_server(keys=KeyRing([(KEY, Tenant("alice"))]), access_log=True)
    caplog.set_level(logging.INFO, "looseleaf")
    client = server.http()
    client.headers["authorization"] = f"Bearer {KEY}"
    body = {"model": "tiny", "prompt": "a secret", "max_tokens": 4, "stream": streamed}
    asked = client.post(
        COMPLETIONS, json=body | {"request_id": "mine"}, headers={"X-Request-Id": "a 'quoted' id"}
    )
    assert asked.status_code == 200

    def records() -> list[logging.LogRecord]:
        return [r for r in caplog.records if r.name == "looseleaf.server.observed"]

    server.eventually(lambda: len(records()) == 1, "it is logged")
    (record,) = records()
    assert record.getMessage().endswith(" \"a 'quoted' id\" alice 9+4 tokens")
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["method"], told["path"], told["status"]) == ("POST", COMPLETIONS, 200)
    assert (told["level"], told["key"]) == ("info", "alice")
    assert (told["request_id"], told["answer_id"]) == ("a 'quoted' id", "cmpl-mine")
    assert (told["prompt_tokens"], told["completion_tokens"], told["cached_tokens"]) == (9, 4, 0)
    assert told["finish_reasons"] == ["length"]
    assert told["prefix_misses"] == [{"reason": "first_seen", "position": 0, "tokens": 8}]
    assert told["duration_ms"] >= told["total_ms"] > 0
    for text in ("secret", "abc", KEY):
        assert text not in line


def test_a_request_that_is_refused_is_logged_too(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(access_log=True)
    caplog.set_level(logging.INFO, "looseleaf")
    server.http().post(COMPLETIONS, json={"model": "x"})

    def records() -> list[Any]:
        return [r for r in caplog.records if r.name == "looseleaf.server.observed"]

    server.eventually(lambda: len(records()) == 1, "it is logged")
    (record,) = records()
    assert record.fields["status"] == 400
    assert "prompt_tokens" not in record.fields
