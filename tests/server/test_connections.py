"""Clients that keep the server waiting, or send more than a request has: they go, others stay."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.server import connections, limits
from looseleaf.server.limits import Limits

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 3}


def connect(server: Any) -> socket.socket:
    port = int(server.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def rest_of(client: socket.socket) -> bytes:
    """Everything up to the server's end of the connection."""
    received = b""
    while True:
        try:
            piece = client.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def status_of(client: socket.socket) -> int:
    """That of the next answer, which is read to its end."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


@contextmanager
def trickling(client: socket.socket, piece: bytes) -> Iterator[None]:
    """Send `piece` every few milliseconds for as long as the server takes it."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            try:
                client.sendall(piece)
            except OSError:
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(20)


def answer_of(client: socket.socket) -> tuple[int, dict[str, Any]]:
    head, _, body = rest_of(client).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"content-type: application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture
def impatient(start_server: Any) -> Any:
    return start_server(limits=Limits(header_timeout=0.4, keep_alive=1, max_header_bytes=2000))


@pytest.mark.parametrize(
    ("first", "piece"),
    [(b"GET /", b"x"), (GET, b"a: b\r\n"), (GET + b"a: ", b"x"), (b"", b"\r\n")],
    ids=["path", "headers", "one header", "nothing but line ends"],
)
def test_a_head_that_trickles_is_a_408(impatient: Any, first: bytes, piece: bytes) -> None:
    start = time.monotonic()
    with connect(impatient) as client:
        client.sendall(first)
        with trickling(client, piece):
            # Others are served meanwhile.
            for _ in range(5):
                assert impatient.http().post("/v1/completions", json=BODY).status_code == 200
            status, error = answer_of(client)
    assert 0.35 < time.monotonic() - start < 10
    assert (status, error["type"]) == (408, "invalid_request_error")
    assert "within 0.4 s" in error["message"]
    impatient.eventually(lambda: len(impatient.context.connections) <= 1, "it has gone")


def test_a_head_after_an_answer_has_no_more_time_than_the_first(impatient: Any) -> None:
    with connect(impatient) as client:
        client.sendall(GET + b"\r\n")
        assert status_of(client) == 200
        with trickling(client, b"\r\n"):
            status, _ = answer_of(client)
        assert status == 408


def test_who_says_nothing_is_told_nothing(impatient: Any) -> None:
    start = time.monotonic()
    with connect(impatient) as client:
        assert rest_of(client) == b""
    assert 0.35 < time.monotonic() - start < 10


def test_an_idle_connection_is_closed(impatient: Any) -> None:
    with connect(impatient) as client:
        client.sendall(GET + b"\r\n")
        start = time.monotonic()
        answer = rest_of(client)
        assert answer.count(b"HTTP/1.1") == 1
        assert 0.9 < time.monotonic() - start < 10


@pytest.mark.parametrize("where", ["path", "one header", "headers"])
@pytest.mark.parametrize("too_many", [0, 1])
def test_how_large_a_head_may_be(impatient: Any, where: str, too_many: int) -> None:
    size = 2000 + too_many
    match where:
        case "path":
            head = b"GET /" + b"x" * (size - 27) + b" HTTP/1.1\r\nhost: x\r\n\r\n"
        case "one header":
            head = GET + b"a: " + b"x" * (size - len(GET) - 7) + b"\r\n\r\n"
        case _:
            head = GET + b"a: b\r\n" * 300
            head += b"c" * (size - len(head) - 5) + b":\r\n\r\n"
    assert len(head) == size
    with connect(impatient) as client:
        client.sendall(head)
        if too_many:
            status, error = answer_of(client)
            assert status == 431
            assert "more than 2000 bytes" in error["message"]
        else:
            assert status_of(client) == (404 if where == "path" else 200)
    assert impatient.http().get("/health").status_code == 200


def test_a_megabyte_of_headers(server: Any) -> None:
    with connect(server) as client:
        client.sendall(GET + b"a: b\r\n" * 200_000)
        status, error = answer_of(client)
    assert status == 431
    assert "more than 65536 bytes" in error["message"]


def test_a_megabyte_of_trailers_or_of_what_is_no_data(server: Any) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for more in (b"0\r\n" + b"a: b\r\n" * 200_000, b"5;" + b"x" * 2**20):
        with connect(server) as client:
            client.sendall(head)
            server.eventually(lambda: server.context.lifecycle.num_answers == 1, "it came")
            with trickling(client, more):
                assert rest_of(client) == b""
        server.eventually(lambda: server.context.lifecycle.num_answers == 0, "it has gone")
    # Chunks of one byte are more than half of it no data, and none the worse for it.
    data = json.dumps(BODY | {"prompt": "x" * 400}).encode()
    chunks = b"".join(b"1;" + b"y" * 400 + b"\r\n%c\r\n" % byte for byte in data)
    assert len(chunks) > 2 * limits.DEFAULT_HEADER_BYTES
    with connect(server) as client:
        client.sendall(head + chunks + b"0\r\n\r\n")
        assert status_of(client) == 200


def test_a_body_for_nobody_does_not_keep_a_connection(impatient: Any) -> None:
    with connect(impatient) as client:
        client.sendall(GET + b"content-length: 999999\r\n\r\n")
        start = time.monotonic()
        with trickling(client, b"x"):
            answer = rest_of(client)
        assert answer.count(b"HTTP/1.1") == 1
        assert 0.35 < time.monotonic() - start < 10
    # One that comes to its end does no harm.
    with connect(impatient) as client:
        client.sendall(GET + b"content-length: 3\r\n\r\n")
        assert status_of(client) == 200
        client.sendall(b"abc" + GET + b"\r\n")
        assert status_of(client) == 200


def test_line_ends_after_a_body_do_not_cut_an_answer(impatient: Any) -> None:
    impatient.executor.seconds = 0.02
    body = json.dumps(BODY | {"max_tokens": 60, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with connect(impatient) as client:
        client.sendall(head + body + b"\r\n")
        answer = rest_of(client)
    assert b"[DONE]" in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_requests_on_the_heels_of_others(server: Any) -> None:
    with connect(server) as client:
        client.sendall((GET + b"\r\n") * 49 + GET + b"connection: close\r\n\r\n")
        assert rest_of(client).count(b"HTTP/1.1 200 OK") == 50


@pytest.mark.parametrize("text", [b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02"])
def test_what_is_no_request_is_a_400_in_the_envelope(server: Any, text: bytes) -> None:
    with connect(server) as client:
        client.sendall(text)
        status, error = answer_of(client)
    assert status == 400
    assert "not a request of HTTP/1.1" in error["message"]


def test_a_reader_that_reads_nothing_is_dropped(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.5)
    server = start_server()
    with connect(server) as client:
        request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
        client.sendall(request * 400)
        server.eventually(lambda: server.context.lifecycle.num_answers == 1, "one is stuck", 30)
        server.eventually(lambda: server.context.lifecycle.num_answers == 0, "it is given up", 30)
        server.eventually(lambda: len(server.context.connections) <= 1, "it has gone")


def test_a_new_connection_takes_the_place_of_an_idle_one(start_server: Any) -> None:
    server = start_server(limits=Limits(max_connections=4))
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(4)]
        start = time.monotonic()
        for client in idle:
            fresh = stack.enter_context(httpx.Client(base_url=server.url, timeout=20))
            assert fresh.post("/v1/completions", json=BODY).status_code == 200
            assert rest_of(client) == b""
            assert len(server.context.connections) == 4
        assert time.monotonic() - start < 10
    server.eventually(lambda: len(server.context.connections) == 0, "all have gone")


def test_where_all_connections_are_being_answered_a_further_one_is_a_503(
    start_server: Any,
) -> None:
    server = start_server(limits=Limits(max_connections=3))
    server.http_client.close()
    server.http_client = None
    server.executor.gate.clear()
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(server)) for _ in range(3)]
        for number, client in enumerate(busy, start=1):
            client.sendall(head + body)
            server.eventually(
                lambda n=number: server.context.lifecycle.num_answers == n, "it is under way"
            )
        with connect(server) as client:
            client.sendall(GET + b"\r\n")
            status, error = answer_of(client)
        assert status == 503
        assert "3 connections" in error["message"]
        server.executor.gate.set()
        for client in busy:
            assert status_of(client) == 200


def test_slow_clients_in_number_do_not_hold_up_others(start_server: Any) -> None:
    server = start_server(limits=Limits(max_connections=100, header_timeout=5))
    with ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(connect(server))
            client.sendall(b"POST /v1/comp")
        for _ in range(20):
            start = time.monotonic()
            answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=20)
            assert answer.status_code == 200
            assert time.monotonic() - start < 5
    server.eventually(lambda: len(server.context.connections) <= 1, "all have gone")


def test_a_crowd_leaves_no_task_and_no_connection(start_server: Any) -> None:
    server = start_server(step_seconds=0.002)
    http = server.http()
    assert http.get("/health").status_code == 200  # the connection that asks is there
    before = http.get("/load").json()
    assert (before["server_load"], before["connections"]) == (0, 1)
    body = json.dumps(BODY | {"max_tokens": 300, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with ExitStack() as stack:
        for number in range(60):
            client = stack.enter_context(connect(server))
            # All of a request, half of its body, half of its head, nothing.
            client.sendall((head + body, head + body[:20], head[:30], b"")[number % 4])
        server.eventually(lambda: http.get("/load").json()["server_load"] == 15, "they run")
        during = http.get("/load").json()
        assert during["connections"] == 61
        assert during["tasks"] > before["tasks"] + 30
    server.eventually(lambda: http.get("/load").json() == before, "it is as it was")


def test_the_limit_follows_the_files_that_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1024, 896), (100, 1), (2**20, 4096), (-1, 4096)):
        monkeypatch.setattr(limits.resource, "getrlimit", lambda _, files=files: (files, files))
        assert Limits().connections() == most
    assert Limits(max_connections=7).connections() == 7
    for wrong in ({"max_connections": 0}, {"keep_alive": 0}, {"header_timeout": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Limits(**wrong)  # type: ignore[arg-type]
