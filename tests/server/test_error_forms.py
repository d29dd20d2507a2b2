"""What goes wrong before, in and behind the routes is told in the form of the API that was asked:
by the official clients of two of them."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import ollama
import pytest

from looseleaf.server.error_forms import error_form
from looseleaf.server.keys import KeyLimits, KeyRing, Tenant
from looseleaf.server.limits import Limits

MESSAGES: Any = [{"role": "user", "content": "hi"}]
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
ERRORS: dict[int, type[anthropic.APIStatusError]] = {
    401: anthropic.AuthenticationError,
    404: anthropic.NotFoundError,
    413: anthropic.RequestTooLargeError,
    429: anthropic.RateLimitError,
}

Ask = Callable[..., tuple[int, str]]
"""Asks a server for a chat that must fail: the status, and what is said of it."""


def ask_anthropic(server: Any, key: str = "none", **fields: Any) -> tuple[int, str]:
    with (
        anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(
            **{"model": "tiny", "max_tokens": 300, "messages": MESSAGES, **fields}
        )
    error = caught.value
    body: Any = error.body
    assert isinstance(error, ERRORS.get(error.status_code, anthropic.APIStatusError))
    assert body.keys() == {"type", "error"}
    assert body["error"].keys() == {"type", "message"}
    assert (body["type"], body["error"]["type"]) == ("error", KINDS[error.status_code])
    assert ("retry-after" in error.response.headers) == (error.status_code == 429)
    return error.status_code, body["error"]["message"]


def ask_ollama(server: Any, key: str = "none", **fields: Any) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {key}"}
    client = ollama.Client(host=server.url, headers=headers, verify=False)
    try:
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(**{"model": "tiny", "messages": MESSAGES, **fields})
    finally:
        client._client.close()
    assert isinstance(caught.value.error, str)
    assert not caught.value.error.startswith("{")
    return caught.value.status_code, caught.value.error


@pytest.fixture(params=[ask_anthropic, ask_ollama], ids=["anthropic", "ollama"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


def test_without_a_key(start_server: Any, ask: Ask) -> None:
    server = start_server(keys=KeyRing([("sk-a", Tenant("a"))]))
    status, message = ask(server, "wrong")
    assert status == 401
    assert "API key" in message


def test_an_unknown_model(server: Any, ask: Ask) -> None:
    status, message = ask(server, model="other")
    assert status == 404
    assert "served: tiny" in message


def test_too_large_a_body(start_server: Any, ask: Ask) -> None:
    status, message = ask(start_server(max_body_bytes=10))
    assert status == 413
    assert "more than 10 bytes" in message


@pytest.fixture
def full(start_server: Any) -> Iterator[Any]:
    """A server whose queue has no room left, behind what does not come to an end."""
    server = start_server(limits=Limits(max_queued_requests=1), max_num_seqs=1)
    server.executor.gate.clear()
    body = {"model": "tiny", "prompt": "x", "max_tokens": 3}
    threads = []
    for number in range(2):
        threads.append(
            threading.Thread(target=lambda: server.http().post("/v1/completions", json=body))
        )
        threads[-1].start()
        expected = (number, number + 1)
        server.eventually(
            lambda e=expected: (  # type: ignore[misc]
                (server.context.gate.waiting()[0], len(server.context.answers)) == e
            ),
            "one runs, and one waits",
        )
    yield server
    server.executor.gate.set()
    for thread in threads:
        thread.join(20)


def test_a_full_queue(full: Any, ask: Ask) -> None:
    status, message = ask(full)
    assert status == 429
    assert "1 of 1 requests wait" in message


def test_what_a_key_may_take(start_server: Any, ask: Ask) -> None:
    limits = KeyLimits(requests_per_minute=1)
    server = start_server(keys=KeyRing([("sk-a", Tenant("a", limits))]))
    ask(server, "sk-a", model="other")
    status, message = ask(server, "sk-a")
    assert status == 429
    assert "1 requests a minute" in message


def test_out_of_time(start_server: Any, ask: Ask) -> None:
    server = start_server(step_seconds=0.02, limits=Limits(request_timeout=0.2))
    status, message = ask(server)
    assert status == 504
    assert "0.2 s" in message


def test_a_server_that_shuts_down(server: Any, ask: Ask) -> None:
    server.context.lifecycle.stopping = True
    try:
        status, message = ask(server)
    finally:
        server.context.lifecycle.stopping = False
    assert (status, message) == (503, "the server is shutting down")


def test_an_engine_that_fails(start_server: Any, ask: Ask) -> None:
    server = start_server()
    server.executor.failure = RuntimeError("broken")
    server.dead = True
    for _ in range(2):  # of the request that it fails with, and of the next
        status, message = ask(server)
        assert status == 503
        assert "the engine has failed" in message


def test_a_mistake_of_ours(server: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(server.context), "check_model", None)
    status, message = ask(server)
    assert status == 500
    assert "an internal error" in message


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/v1/messages"), ("GET", "/v1/messages/batches"), ("POST", "/v1/messages/x")),
        *(("GET", "/api/chat"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
    ],
)
def test_what_is_not_there(server: Any, method: str, path: str) -> None:
    answer = server.http().request(method, path)
    assert answer.status_code in (404, 405)
    body = answer.json()
    if path.startswith("/api/"):
        assert isinstance(body["error"], str)
    else:
        assert (body["type"], body["error"]["type"]) == ("error", KINDS[answer.status_code])


def test_a_body_that_never_comes(start_server: Any) -> None:
    server = start_server(limits=Limits(read_timeout=0.2))

    def slow() -> Iterator[bytes]:
        yield b"{"
        threading.Event().wait(1)
        yield b"}"

    for path, form in (("/v1/messages", dict), ("/api/chat", str), ("/v1/completions", dict)):
        with httpx.Client(base_url=server.url, timeout=20) as client:
            answer = client.post(path, content=slow())
        assert answer.status_code == 408
        assert isinstance(answer.json()["error"], form)
        assert ("type" in answer.json()) == (path == "/v1/messages")


def test_forms_of_paths() -> None:
    openai_form = error_form("/v1/chat/completions")
    for path in ("/", "/v1/messagesX", "/v1/models/api/x", "/apiary", "/v1/responses/x"):
        assert error_form(path) is openai_form
    assert error_form("/v1/messages") is error_form("/v1/messages/count_tokens")
    assert len({error_form(path) for path in ("/", "/v1/messages", "/api/chat")}) == 3
