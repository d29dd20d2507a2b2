"""What a client sees of its mistakes."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

CHAT = "/v1/chat/completions"


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return dict(body["error"])


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"[]", None),
        (b'"x"', None),
        (b"\xff\xfe", None),
        (b'{"model": NaN}', None),
        (b'{"model": "tiny"}', "messages"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "model"),
        (b'{"model": null, "messages": []}', "model"),
        (b'{"model": 5, "messages": []}', "model"),
        (b'{"model": "tiny", "messages": []}', "messages"),
        (b'{"model": "tiny", "messages": ["x"]}', "messages"),
        (b'{"model": "tiny", "messages": [{"content": "x"}]}', "messages"),
        (b'{"model": "tiny", "messages": [], "max_tokens": "many"}', "max_tokens"),
        (b'{"model": "tiny", "messages": [], "temperature": 1e999}', None),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800x"}]}', None),
        (b'{"model": "tiny", "messages": [], "cache_salt": "\\udc00"}', None),
        (b'{"model": "tiny", "messages": [], "n": ' + b"9" * 5000 + b"}", None),
        (b'{"model": "tiny", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    ],
)
def test_c105_a_bad_body_is_a_400_in_the_envelope(
    server: Any, content: bytes, param: str | None
) -> None:
    error = error_of(server.http().post(CHAT, content=content), 400)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_c105_routes_and_methods(server: Any) -> None:
    client = server.http()
    error_of(client.get("/nothing/here"), 404)
    answer = client.get(CHAT)
    error_of(answer, 405)
    assert answer.headers["allow"] == "POST"


def test_c105_an_unknown_model_is_a_404(server: Any, chat_body: Any) -> None:
    for name in ("gpt-4", "../../etc/passwd", ""):
        error = error_of(server.http().post(CHAT, json={**chat_body, "model": name}), 404)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert "tiny" in error["message"]
        assert "passwd" not in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_c104_a_prompt_beyond_the_context(server: Any, stream: bool) -> None:
    client = server.http()
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 600}], "stream": stream}
    raw = {"model": "tiny", "prompt": "x" * 600, "stream": stream}
    for path, body, param, length in (
        (CHAT, chat, "messages", "619"),
        ("/v1/completions", raw, "prompt", "601"),
    ):
        error = error_of(client.post(path, json=body), 400)
        assert error["type"] == "invalid_request_error"
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert length in error["message"]
        assert "512" in error["message"]


def test_c107_errors_are_short_and_do_not_repeat_the_input(server: Any, chat_body: Any) -> None:
    client = server.http()
    marker = "MARKER" * 5000
    for extra in (
        {"messages": [marker] * 100},
        {"messages": [{"role": "user", "content": {marker: marker}}] * 100},
        {"model": marker},
        {"n": marker},
        {"stop": [marker]},
        {marker: [1, {marker: 2}], "n": 0},
        {"chat_template": marker},
        {"response_format": {"type": marker}},
        {"stop_token_ids": [marker] * 100},
    ):
        answer = client.post(CHAT, json={**chat_body, **extra})
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 2000
        assert "MARKER" not in answer.text


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"stop": ["", "MARKER"]}, "stop"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_param_is_the_field_that_was_sent(
    server: Any, chat_body: Any, extra: dict[str, Any], param: str
) -> None:
    error = error_of(server.http().post(CHAT, json={**chat_body, **extra}), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param} ")
    assert "MARKER" not in error["message"]


def test_a_template_cannot_name_a_param(start_server: Any, chat_body: Any) -> None:
    server = start_server(template="{{ raise_exception('temperature is a matter of taste') }}")
    assert error_of(server.http().post(CHAT, json=chat_body), 400)["param"] == "messages"


@pytest.mark.parametrize("calls", [5, True, [1], [{"function": {"arguments": "[" * 200}}]])
def test_tool_calls_are_never_a_500(server: Any, chat_body: Any, calls: Any) -> None:
    message = {"role": "assistant", "tool_calls": calls}
    answer = server.http().post(CHAT, json={**chat_body, "messages": [message]})
    assert answer.status_code == (200 if isinstance(calls, list) and calls != [1] else 400)


def test_c107_a_long_role_is_cut(server: Any, chat_body: Any) -> None:
    body = {**chat_body, "messages": [{"role": "banana" * 10_000, "content": ""}]}
    error = error_of(server.http().post(CHAT, json=body), 400)
    assert len(error["message"]) < 200


def test_c132_the_templates_own_refusal_is_a_400(start_server: Any, chat_body: Any) -> None:
    server = start_server(template="{{ raise_exception('roles must alternate') }}")
    error = error_of(server.http().post(CHAT, json=chat_body), 400)
    assert "roles must alternate" in error["message"]
    assert error["param"] == "messages"


def test_c159_bodies_beyond_the_limit(start_server: Any) -> None:
    server = start_server(max_body_bytes=1000)
    client = server.http()
    fits = json.dumps({"model": "tiny", "prompt": "x"}).encode().ljust(1000)
    assert client.post("/v1/completions", content=fits).status_code == 200
    error_of(client.post("/v1/completions", content=fits + b" "), 413)
    error_of(client.post("/v1/completions", content=b"x" * 3_000), 413)
    chunks = (b"x" * 100 for _ in range(30))
    error_of(client.post("/v1/completions", content=chunks), 413)


def test_c159_a_megabyte_is_legal_and_tokens_are_what_counts(server: Any) -> None:
    answer = server.http().post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "x", "metadata": {"note": "y" * 2**20}},
    )
    assert answer.status_code == 200
    text = "x" * 2**20
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        error = error_of(server.http().post(path, json={"model": "tiny", **body}), 400)
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]


def test_c157_a_clients_id_is_only_echoed(start_server: Any, chat_body: Any) -> None:
    server = start_server(step_seconds=0.002)
    client = server.http()

    def ask(_: int) -> Any:
        headers = {"X-Request-Id": "same"}
        return client.post(CHAT, json=chat_body, headers=headers)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, range(4)))
    assert all(answer.headers["x-request-id"] == "same" for answer in answers)
    assert len({answer.json()["id"] for answer in answers}) == 4
    # In the body it names the answer, and still nothing in the engine.
    body = {**chat_body, "request_id": "same"}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: client.post(CHAT, json=body).json(), range(4)))
    assert {answer["id"] for answer in answers} == {"chatcmpl-same"}
    assert len({json.dumps(answer["choices"]) for answer in answers}) == 1
    assert "x-request-id" not in client.post(CHAT, json=chat_body).headers


def test_c161_no_cors_headers(server: Any, chat_body: Any) -> None:
    client = server.http()
    headers = {"Origin": "https://evil.example"}
    for answer in (
        client.post(CHAT, json=chat_body, headers=headers),
        client.get("/metrics", headers=headers),
        client.options(CHAT, headers={**headers, "Access-Control-Request-Method": "POST"}),
    ):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_any_content_type_will_do(server: Any, chat_body: Any) -> None:
    answer = server.http().post(
        CHAT, content=json.dumps(chat_body), headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 200


def test_a_bug_is_a_500_without_details(
    server: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> str:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(server.context.chat_template, "render", broken)
    answer = server.http().post(CHAT, json=chat_body)
    assert error_of(answer, 500)["type"] == "server_error"
    assert "secret" not in answer.text
