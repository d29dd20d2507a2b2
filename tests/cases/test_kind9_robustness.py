"""Ways in which a request hurt a server or its other clients, reported against systems like this
one."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.sampling.params import SamplingParams, StructuredOutputs
from looseleaf.sampling.sampler import UnusableLogitsError, sample
from looseleaf.server.keys import KeyRing, Tenant
from looseleaf.server.limits import Cors
from looseleaf.weights.cache import CachedModel
from looseleaf.weights.source import SourceError, known_models, resolve

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
KEY = "sk-cases-0123456789"
EVIL = {"origin": "https://evil.example"}
REASONS = ("stop", "length", "abort", "error")


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert len(answer.content) < 2000
    return dict(answer.json()["error"])


def all_at_once(server: Any, bodies: list[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are in one batch."""
    server.executor.gate.clear()
    with ThreadPoolExecutor(len(bodies)) as pool:
        futures = [pool.submit(server.http().post, COMPLETIONS, json=body) for body in bodies]
        server.eventually(
            lambda: server.context.lifecycle.num_answers == len(bodies), "all are under way"
        )
        server.executor.gate.set()
        return [future.result() for future in futures]


def ended(server: Any) -> dict[str, float]:
    return {
        reason: server.metric("vllm:request_success_total", finished_reason=reason)
        for reason in REASONS
    }


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize("place", ["body", "kwargs"])
def test_c148_a_request_cannot_bring_its_template(server: Any, path: str, place: str) -> None:
    endless = {"chat_template": "{% for _ in range(10**9) %}x{% endfor %}"}
    fields = endless if place == "body" else {"chat_template_kwargs": endless}
    body = {"model": "tiny", "messages": USER}
    start = time.monotonic()
    error = error_of(server.http().post(path, json={**body, **fields}), 400)
    assert time.monotonic() - start < 5
    assert error["param"] == next(iter(fields))
    assert "range" not in error["message"]
    fine = {**body, "chat_template_kwargs": {"enable_thinking": False}}
    assert server.http().post(path, json=fine).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"n": 5_000_000}, "n"),
        (CHAT, {"n": 2**31}, "n"),
        (CHAT, {"n": 2**64 + 1}, "n"),
        (COMPLETIONS, {"logprobs": 10**9}, "logprobs"),
        (COMPLETIONS, {"n": 5_000_000}, "n"),
        (COMPLETIONS, {"prompt": ["x"] * 1000, "n": 2}, "prompt"),
        (COMPLETIONS, {"prompt": [[5]] * 2**16, "n": 2**48}, "n"),
    ],
)
def test_c150_counts_are_checked_before_there_is_room_for_them(
    server: Any, path: str, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "messages": USER} if path == CHAT else {"model": "tiny", "prompt": "x"}
    assert error_of(server.http().post(path, json={**body, **fields}), 400)["param"] == param
    assert server.metric("looseleaf_requests_started_total") == 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["secret"] * 500_000},
        {"stop": "secret" * 170_000},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"bad_words": ["secret"] * 50_000},
        {"bad_words": ["secret"] * 129},
        {"bad_words": ["secret" * 170_000]},
        {"stop_token_ids": [5] * 500_000},
    ],
)
def test_c151_stop_lists_have_an_end(server: Any, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": USER} if path == CHAT else {"model": "tiny", "prompt": "x"}
    start = time.monotonic()
    error = error_of(server.http().post(path, json={**body, **fields}), 400)
    assert time.monotonic() - start < 5
    assert error["param"] == next(iter(fields))
    assert "at most" in error["message"] or "more than" in error["message"]
    assert "secret" not in error["message"]


def test_c153_nothing_is_open_but_signs_of_life(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(keys=KeyRing([(KEY, Tenant("one"))]), access_log=True)
    paths = {route.path for route in server.server.config.app.routes}
    paths |= {"/invocations", "/inference/v1/generate", "/view", "/docs", "/openapi.json", "/"}
    client = server.http()
    for path in paths - {"/health", "/ping", "/ready", "/studio"}:
        for method in ("GET", "POST", "DELETE", "HEAD"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path)
    assert client.get("/health").status_code == 200
    client.headers["authorization"] = f"Bearer {KEY}"
    assert client.get("/metrics").status_code == 200
    assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200
    assert KEY not in "".join(r.getMessage() for r in caplog.records if "looseleaf" in r.name)


@pytest.mark.parametrize(
    "asked",
    [
        {"structured_outputs": {"regex": "["}},
        {"guided_regex": "["},
        {"guided_regex": "a{99999999}"},
        {"guided_regex": "(a?){5000}a{5000}"},
        {"guided_json": "{"},
        {"guided_json": {"type": "nonsense"}},
        {"guided_grammar": "start: ("},
        {"guided_choice": []},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": 5}},
            }
        },
    ],
)
def test_c154_a_grammar_of_no_use_is_a_400(
    server: Any, chat_body: Any, asked: dict[str, Any]
) -> None:
    start = time.monotonic()
    error = error_of(server.http().post(CHAT, json={**chat_body, **asked}), 400)
    assert time.monotonic() - start < 5
    assert error["message"]
    assert server.metric("looseleaf_requests_started_total") == 0
    assert server.http().post(CHAT, json=chat_body).status_code == 200


def test_c154_what_a_huge_quantifier_costs_is_bounded(server: Any) -> None:
    grammars = server.context.grammars
    grammars.compile(StructuredOutputs(regex="a"))  # what comes but once
    grammar = grammars.compile(StructuredOutputs(regex="(a{1,9999}){1,9999}"))
    matcher = grammars.matcher(grammar)
    longest = 0.0
    for _ in range(300):
        start = time.monotonic()
        if not matcher.consume_tokens([ord("a")]):
            break
        matcher.compute_bitmask()
        longest = max(longest, time.monotonic() - start)
    assert longest < 0.5


def test_c154_others_are_answered_while_a_grammar_is_made(
    server: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, go_on = threading.Event(), threading.Event()

    def compile_slowly(asked: StructuredOutputs) -> str:
        making.set()
        assert go_on.wait(20)
        raise LooseleafError("structured_outputs: too complex")

    monkeypatch.setattr(server.context.grammars, "compile", compile_slowly)
    body = {**chat_body, "guided_regex": "(a{1,9999}){1,9999}"}
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.http().post, CHAT, json=body)
        assert making.wait(20)
        try:
            assert server.http().post(CHAT, json=chat_body).status_code == 200
            assert server.http().get("/health").status_code == 200
        finally:
            go_on.set()
        error_of(future.result(), 400)


class NotNumbers:
    """For `next_token`: a, b, c, ... by position; but the first `times` that a prompt of `length`
    tokens has a token drawn at `length + after`, its logits are no numbers."""

    def __init__(self, length: int, after: int, times: int = 1) -> None:
        self._length = length
        self._after = after
        self._times = times
        self._lengths: dict[str, int] = {}

    def __call__(self, request_id: str, position: int) -> int | None:
        length = self._lengths.setdefault(request_id, position)
        if length == self._length and position == length + self._after and self._times:
            self._times -= 1
            return None
        return ord("a") + position % 26


@pytest.mark.parametrize("after", [0, 3])
def test_c156_logits_that_are_no_numbers_fail_their_request_alone(
    start_server: Any, after: int
) -> None:
    lengths = (10, 20, 30, 40)
    server = start_server(next_token=NotNumbers(30, after), max_num_batched_tokens=256)
    bodies = [
        {"model": "tiny", "prompt": [length] * length, "max_tokens": 6, "logprobs": 1}
        for length in lengths
    ]
    answers = all_at_once(server, bodies)
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
    assert error_of(answers[2], 500)["type"] == "server_error"
    for length, answer in zip(lengths, answers, strict=True):
        if length != 30:
            expected = "".join(chr(ord("a") + (length + i) % 26) for i in range(6))
            assert answer.json()["choices"][0]["text"] == expected
    assert ended(server) == {"stop": 0, "length": 3, "abort": 0, "error": 1}
    # It is computed anew, and then it is right; what the others left is found.
    again = [server.http().post(COMPLETIONS, json=body).json() for body in bodies]
    found = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in again]
    assert found == [9, 19, 0, 39]
    assert again[2]["choices"][0]["text"] == "efghij"


@pytest.mark.parametrize("after", [0, 5])
def test_c156_what_was_stored_before_it_is_seen_is_not_found_either(
    start_server: Any, after: int
) -> None:
    server = start_server(next_token=NotNumbers(50, after), max_num_batched_tokens=16)
    body = {"model": "tiny", "prompt": [7] * 50, "max_tokens": 8}
    error_of(server.http().post(COMPLETIONS, json=body), 500)
    assert server.metric("looseleaf_kv_blocks", state="evictable") == 0
    cached = [
        server.http().post(COMPLETIONS, json=body).json()["usage"]["prompt_tokens_details"]
        for _ in range(2)
    ]
    assert [details["cached_tokens"] for details in cached] == [0, 49]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_c156_a_client_is_told_of_the_failure(start_server: Any, path: str, stream: bool) -> None:
    server = start_server(next_token=lambda request_id, position: None)
    body = {"model": "tiny", "messages": USER, "prompt": "x", "stream": stream, "max_tokens": 5}
    del body["prompt" if path == CHAT else "messages"]
    answer = server.http().post(path, json=body)
    assert answer.status_code == (200 if stream else 500)
    last = answer.text.strip().rpartition("\n")[2].removeprefix("data: ")
    assert json.loads(last)["error"]["type"] == "server_error"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_c156_no_token_is_drawn_because_of_such_a_logit(temperature: float, bad: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3)
    with pytest.raises(UnusableLogitsError):
        sample(np.full(50, bad, np.float32), params, 0, 0)
    one = np.linspace(-3, 3, 50, dtype=np.float32)
    one[7] = bad
    if bad == np.inf:
        with pytest.raises(UnusableLogitsError):
            sample(one, params, 0, 0)
        return
    drawn = [sample(one, params, 0, position) for position in range(200)]
    assert 7 not in drawn
    assert drawn.count(0) < 10
    if temperature == 0:
        assert set(drawn) == {49}


def test_c157_equal_ids_of_clients_are_told_apart(start_server: Any) -> None:
    server = start_server(step_seconds=0.002)

    def ask(prompt: str) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "stream": True}
        headers = {"x-request-id": "id"}
        answer: httpx.Response = server.http().post(COMPLETIONS, json=body, headers=headers)
        return answer

    prompts = ["x" * (1 + i) for i in range(6)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts))
    ids = set()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.headers["x-request-id"] == "id"
        events = [json.loads(data) for data in re.findall(r"data: (\{.*)", answer.text)]
        text = "".join(event["choices"][0]["text"] for event in events)
        first = len(prompt) + 1  # after a BOS
        assert text == "".join(chr(ord("a") + (first + i) % 26) for i in range(20))
        ids |= {event["id"] for event in events}
    assert len(ids) == len(prompts)
    assert server.metric("vllm:num_requests_running") == 0
    assert sum(ended(server).values()) == len(prompts)
    samples = re.findall(r"^[^#].* (\S+)$", server.http().get("/metrics").text, re.MULTILINE)
    assert samples
    assert all(float(value) >= 0 for value in samples)


def test_c159_bytes_are_limited_before_and_tokens_after_parsing(start_server: Any) -> None:
    server = start_server(max_body_bytes=4 * 2**20)

    def ask(content: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 2, **more}
        start = time.monotonic()
        answer = server.http().post(CHAT, json=body)
        assert time.monotonic() - start < 10
        return answer

    error_of(ask("x" * (10 * 2**20)), 413)
    malformed = server.http().post(CHAT, content=b"{" * (5 * 2**20))
    error_of(malformed, 413)
    error = error_of(ask("x" * (150 * 2**10)), 400)
    assert error["code"] == "context_length_exceeded"
    assert server.metric("looseleaf_requests_started_total") == 0
    assert ask("hi", metadata={"note": "y" * 2**20}).status_code == 200


def test_c159_the_default_limit_takes_what_agents_send(server: Any) -> None:
    assert 2 * 2**20 <= server.context.max_body_bytes <= 64 * 2**20
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    for size in (150 * 2**10, 2**20):
        fields = {**body, "metadata": {"note": "y" * size}}
        assert server.http().post(COMPLETIONS, json=fields).status_code == 200


def test_c161_other_origins_are_told_nothing(server: Any, chat_body: Any) -> None:
    client = server.http()
    asked = {**EVIL, "access-control-request-method": "POST"}
    for answer in (
        client.post(CHAT, json=chat_body, headers=EVIL),
        client.post(CHAT, json={**chat_body, "stream": True}, headers=EVIL),
        client.get("/metrics", headers=EVIL),
        client.get("/view", headers=EVIL),
        client.options(CHAT, headers=asked),
    ):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_c161_a_preflight_of_a_named_origin_needs_no_key(start_server: Any) -> None:
    origin = "https://chat.example.org"
    keys = KeyRing([(KEY, Tenant("one"))])
    server = start_server(keys=keys, cors=Cors(origins=(origin,)))
    asked = {"access-control-request-method": "POST"}
    answer = server.http().options(CHAT, headers={"origin": origin, **asked})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    refused = server.http().options(CHAT, headers={**EVIL, **asked})
    assert "access-control-allow-origin" not in refused.headers
    server.http().headers["x-api-key"] = KEY


def test_c163_no_name_leads_to_a_file(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "secret.gguf"
    secret.write_text("marker")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.gguf").symlink_to(secret)
    monkeypatch.chdir(inside)
    before = sorted(tmp_path.rglob("*"))
    names = ["../../etc/passwd", "../outside/secret.gguf", str(secret), "link.gguf", ".."]
    client = server.http()
    for name in names:
        quoted = name.replace("/", "%2F").replace(".", "%2E")
        for answer in (
            client.post(CHAT, json={"model": name, "messages": USER}),
            client.post(COMPLETIONS, json={"model": name, "prompt": "x"}),
            client.post("/tokenize", json={"model": name, "prompt": "x"}),
            client.post("/v1/responses", json={"model": name, "input": "x"}),
            client.post("/api/show", json={"model": name}),
            client.get(f"/v1/models/{quoted}"),
            client.get(f"/v1/responses/{quoted}"),
            client.delete(f"/v1/cache/pins/{quoted}"),
        ):
            assert answer.status_code in (400, 404), (name, answer.text)
            for word in ("marker", "passwd", "secret", "outside", str(tmp_path)):
                assert word not in answer.text
    assert secret.read_text() == "marker"
    assert sorted(tmp_path.rglob("*")) == before


def test_c163_what_is_downloaded_stays_in_its_folder(tmp_path: Path) -> None:
    for model in known_models().values():
        path = CachedModel(tmp_path, model).path.resolve()
        assert path.is_relative_to(tmp_path.resolve() / "models" / model.name)
    for name in ("hf:../b", "hf:a/..", "hf:a/b:../../x.gguf", "hf:a/b:/etc/x.gguf", "hf:/etc/x"):
        with pytest.raises(SourceError):
            resolve(name, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def process(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of its own, and where it is."""
    log = tmp_path / "log"
    command = ("-m", "looseleaf", "serve", str(tiny_model), "--port", "0", "--shutdown-timeout")
    with log.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, *command, "5", "--kv-cache-memory", "4MiB"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "HOME": str(tmp_path)},
        )
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"at (http://\S+)/v1; KV cache: ", log.read_text())):
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield started, found[1]
    finally:
        if started.poll() is None:
            started.kill()
        started.wait(30)


@pytest.mark.parametrize("signals", [1, 2])
def test_c164_five_streams_end_in_order_and_so_does_the_process(
    process: tuple[subprocess.Popen[bytes], str], tiny_model: Path, signals: int
) -> None:
    started, url = process
    streaming = threading.Barrier(6)

    def ask() -> str:
        body = {"model": str(tiny_model), "prompt": "a", "n": 8, "ignore_eos": True, "stream": True}
        heard = ""
        with httpx.stream("POST", f"{url}{COMPLETIONS}", json=body, timeout=60) as answer:
            assert answer.status_code == 200
            for number, text in enumerate(answer.iter_text()):
                heard += text
                if number == 0:
                    streaming.wait(30)
        return heard

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(ask) for _ in range(5)]
        streaming.wait(30)
        for _ in range(signals):
            started.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        for future in futures:
            last = future.result(30).strip().rpartition("\n")[2].removeprefix("data: ")
            assert last == "[DONE]" or json.loads(last)["error"]["message"]
    assert started.wait(15) == 0
    with pytest.raises(ProcessLookupError):  # nobody is left of its session
        os.killpg(started.pid, 0)


def test_c164_a_server_that_drains_takes_nothing_new(start_server: Any) -> None:
    server = start_server(step_seconds=0.01)
    client = server.http()
    body = {"model": "tiny", "prompt": "x", "max_tokens": 60, "stream": True}
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(client.post, COMPLETIONS, json=body) for _ in range(5)]
        server.eventually(lambda: server.context.lifecycle.num_answers == 5, "five stream")
        server.loop.call_soon_threadsafe(server.server.handle_exit, signal.SIGTERM, None)
        server.eventually(lambda: server.context.lifecycle.stopping, "it shuts down")
        assert client.post(COMPLETIONS, json=body).status_code == 503
        assert client.get("/health").status_code == 503
        assert all(future.result().text.endswith("data: [DONE]\n\n") for future in futures)
    server.thread.join(20)
    assert not server.thread.is_alive()
    server.dead = True  # there is no engine left to look at


def test_c165_every_request_is_counted_once_when_it_ends(start_server: Any) -> None:
    server = start_server(step_seconds=0.003)
    client = server.http()

    def ask(i: int) -> None:
        body = {"model": "tiny", "prompt": "x" * (1 + i), "max_tokens": 400, "stream": True}
        if i < 3:
            with client.stream("POST", COMPLETIONS, json=body) as answer:
                next(answer.iter_text())  # and leave
        else:
            more = {"stop": "z"} if i < 7 else {"max_tokens": 3}
            assert client.post(COMPLETIONS, json={**body, **more}).status_code == 200

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(ask, range(10)))
    server.eventually(lambda: sum(ended(server).values()) == 10, "all have ended")
    assert ended(server) == {"stop": 4, "length": 3, "abort": 3, "error": 0}
    assert server.metric("looseleaf_requests_started_total") == 10
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert server.metric(f"vllm:{gauge}") == 0
