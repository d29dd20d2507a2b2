"""The way out: requests end in order, or by an error, and the log says no more than that."""

import json
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from looseleaf.server.keys import KeyRing, Tenant

BODY = {"model": "tiny", "prompt": "x", "max_tokens": 400}


def ask(server: Any, path: str = "/v1/completions", **extra: Any) -> Callable[[], Any]:
    """Send a request from a thread; the result waits for what comes of it."""
    answers: list[Any] = []

    def run() -> None:
        answers.append(server.http().post(path, json=BODY | extra))

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(30)
        return answers[0]

    server.eventually(lambda: server.context.lifecycle.num_answers == 1, "it is under way")
    return result


def signal_to(server: Any) -> None:
    server.loop.call_soon_threadsafe(server.server.handle_exit, signal.SIGTERM, None)


def last_event(answer: Any) -> Any:
    data = answer.text.strip().rpartition("\n")[2].removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def check_ended(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server.thread.join(20)
    assert not server.thread.is_alive()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    server.dead = True  # there is no engine left to look at


def test_c164_requests_that_run_may_end_while_new_ones_are_refused(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(step_seconds=0.005)
    result = ask(server, stream=True, stream_options={"include_usage": True})
    signal_to(server)
    server.eventually(lambda: server.context.lifecycle.stopping, "it shuts down")
    client = server.http()
    refused = client.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "the server is shutting down"
    assert refused.headers["connection"] == "close"
    assert client.get("/health").status_code == 503
    assert client.get("/ready").status_code == 503
    assert client.get("/metrics").status_code == 200
    answer = result()
    assert last_event(answer) == "[DONE]"
    usage = json.loads(answer.text.split("data: ")[-2])["usage"]
    assert usage["completion_tokens"] == 400
    check_ended(server, caplog)


@pytest.mark.parametrize("way", ["limit", "second signal"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
def test_c164_what_is_left_ends_with_an_error(
    start_server: Any,
    caplog: pytest.LogCaptureFixture,
    way: str,
    stream: bool,
    prompt: str | list[str],
) -> None:
    server = start_server(step_seconds=0.05)
    server.server.shutdown_seconds = 0.3 if way == "limit" else 60
    result = ask(server, stream=stream, prompt=prompt)
    signal_to(server)
    if way == "second signal":
        server.eventually(lambda: server.context.lifecycle.stopping, "it shuts down")
        signal_to(server)
    answer = result()
    assert answer.status_code == (200 if stream else 503)
    error = last_event(answer)["error"]
    assert error["message"] == "the server is shutting down"
    assert error["type"] == "server_error"
    check_ended(server, caplog)


def test_c164_half_a_request_holds_nothing_up(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    server.server.shutdown_seconds = 0.1
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        server.eventually(lambda: server.context.lifecycle.num_answers == 1, "it is under way")
        signal_to(server)
        check_ended(server, caplog)


def test_a_failed_engine_ends_the_server(start_server: Any) -> None:
    server = start_server()
    server.server._exit_on_engine_failure = True
    server.executor.failure = RuntimeError("broken")
    assert server.http().post("/v1/completions", json=BODY).status_code == 503
    server.thread.join(20)
    assert not server.thread.is_alive()
    server.dead = True


def test_ready_and_keys_behind_a_proxy(start_server: Any) -> None:
    server = start_server(keys=KeyRing([("sk-1", Tenant("one"))]))
    server.server.config.root_path = "/llm"
    client = server.http()
    assert client.get("/ready").status_code == 200
    assert client.get("/v1/models").status_code == 401
    client.headers["x-api-key"] = "sk-1"
    assert client.get("/v1/models").status_code == 200
