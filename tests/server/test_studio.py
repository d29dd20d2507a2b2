"""/studio: the feed of a running server, who may read it, and recordings."""

import asyncio
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.snapshot import snapshot
from looseleaf.server.keys import key_ring
from looseleaf.server.studio import Studio
from looseleaf.studio.frames import HASH_DIGITS, Delta, Snapshot, decode
from looseleaf.studio.hub import MAX_VIEWERS
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import frames_of
from looseleaf.studio.settings import StudioSettings


class Viewer:
    """Reads the feed in a thread, and keeps its picture up to date."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.picture: Picture | None = None
        self.frames: list[Snapshot | Delta] = []
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        with (
            httpx.Client(base_url=self.server.url, timeout=20, verify=False) as client,
            client.stream("GET", "/studio/feed") as answer,
        ):
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    frame = decode(line.removeprefix("data: ").encode())
                    if self.picture is None:
                        assert isinstance(frame, Snapshot)
                        self.picture = Picture(frame)
                    else:
                        self.picture.apply(frame)
                    self.frames.append(frame)
                if self.stopped.is_set():
                    break
        self.ended.set()

    def shows(self, server: Any) -> bool:
        """Whether the picture is what the core says now."""
        if self.picture is None:
            return False
        now = server.call(lambda engine: snapshot(engine.scheduler))
        blocks = {
            b.block_id: (b.ref_count, b.hash.hex()[:HASH_DIGITS] if b.hash else None)
            for b in now.blocks
            if b.ref_count or b.hash
        }
        shown = {b.block_id: (b.ref_count, b.hash) for b in self.picture.blocks.values()}
        requests = {r.request_id: r.num_computed_tokens for r in now.requests}
        known = {r.id: r.num_computed_tokens for r in self.picture.requests.values()}
        return blocks == shown and requests == known


@contextmanager
def watching(server: Any) -> Iterator[Viewer]:
    viewer = Viewer(server)
    try:
        server.eventually(lambda: viewer.picture is not None, "the snapshot has come")
        yield viewer
    finally:
        viewer.stopped.set()
        server.http().post(
            "/v1/completions", json={"model": "tiny", "prompt": "bye", "max_tokens": 1}
        )
        viewer.thread.join(20)
        assert not viewer.thread.is_alive()


def is_attached(server: Any) -> bool:
    found: bool = server.call(lambda e: e.scheduler.allocator.events is not None)
    return found


def test_the_feed_shows_what_the_core_says(start_server: Any, chat_body: dict[str, Any]) -> None:
    server = start_server(step_seconds=0.002)
    client = server.http()
    client.post("/v1/chat/completions", json=chat_body)
    assert not is_attached(server)
    num_observers = server.call(lambda e: len(e.observers))
    with watching(server) as viewer:
        assert is_attached(server)
        for n in (1, 4):
            client.post(
                "/v1/chat/completions", json={**chat_body, "n": n, "max_tokens": 40, "seed": 1}
            )
        server.eventually(lambda: viewer.shows(server), "the picture is the core's")
        deltas = [frame for frame in viewer.frames if isinstance(frame, Delta)]
        ended = [r for d in deltas for r in d.requests if r.status == "finished"]
        assert [r.reason for r in ended] == ["length"] * 5
        assert sum(len(d.copies) for d in deltas) >= 3
        assert all(b.text is None for d in deltas for b in d.blocks)
        # Ten deltas a second at most.
        times = [d.time for d in deltas]
        assert all(b - a > 0.08 for a, b in pairwise(times))
    server.eventually(lambda: not is_attached(server), "nobody watches, so nothing is noted")
    assert server.call(lambda e: len(e.observers)) == num_observers


def test_aborted_requests_blocks_turn_free(start_server: Any, chat_body: dict[str, Any]) -> None:
    server = start_server(step_seconds=0.01)
    with watching(server) as viewer:
        body = {**chat_body, "max_tokens": 400, "stream": True}
        with server.http().stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.eventually(
                lambda: any(b.ref_count for b in viewer.picture.blocks.values()), "blocks are held"
            )
        server.eventually(
            lambda: not any(b.ref_count for b in viewer.picture.blocks.values()),
            "no block is held any more",
        )
        server.eventually(lambda: viewer.shows(server), "the picture is the core's")
        ended = [r for f in viewer.frames[1:] for r in f.requests if r.status == "finished"]
        assert [r.reason for r in ended] == ["abort"]


def test_text_is_told_where_it_may_be(start_server: Any, chat_body: dict[str, Any]) -> None:
    server = start_server(studio=StudioSettings(show_text=True))
    with watching(server) as viewer:
        server.http().post("/v1/chat/completions", json=chat_body)
        server.eventually(
            lambda: "er]h" in {b.text for b in viewer.picture.blocks.values()}, "the text is there"
        )


def test_many_viewers_see_the_same_and_no_more_than_so_many(start_server: Any) -> None:
    server = start_server()
    with watching(server) as one, watching(server) as other:
        server.http().post(
            "/v1/completions", json={"model": "tiny", "prompt": "hello", "max_tokens": 30}
        )
        for viewer in (one, other):
            server.eventually(lambda v=viewer: v.shows(server), "the picture is the core's")
        assert one.frames[-1] == other.frames[-1]
        sockets = [ask(server) for _ in range(MAX_VIEWERS - 1)]
        statuses = [s.recv(12) for s in sockets]
        assert statuses.count(b"HTTP/1.1 200") == MAX_VIEWERS - 2
        assert statuses.count(b"HTTP/1.1 503") == 1
        for s in sockets:
            s.close()


def ask(server: Any, *headers: str) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    lines = ["GET /studio/feed HTTP/1.1", f"host: {host}", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return connection


def test_the_page_is_open_and_the_feed_is_behind_the_key(start_server: Any) -> None:
    server = start_server(keys=key_ring(["secret"]))
    client = server.http()
    for path in ("/studio/feed", "/studio/about", "/studio/compare"):
        assert client.get(path).status_code == 401
    assert client.post("/studio/").status_code == 401
    page = client.get("/studio", follow_redirects=True)
    assert page.url.path == "/studio/"
    assert page.status_code in (200, 503)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    about = client.get("/studio/about", headers={"x-api-key": "secret"})
    assert about.json() == {
        "source": "live",
        "chats": True,
        "model": "tiny",
        "compare": ["made-up"],
    }
    with ask(server, "authorization: Bearer secret") as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
    for name in ("nothing.js", "..%2ffeed.py", "%2e%2e%2ffeed.py"):
        assert client.get(f"/studio/files/{name}").status_code == 404


def test_two_allocators_are_compared_in_a_process_of_their_own(start_server: Any) -> None:
    server = start_server()
    client = server.http()

    def processes() -> int:
        children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        return sum(len(child.read_text().split()) for child in children)

    before = processes()
    answer = client.get("/studio/compare", params={"seconds": 2, "rate": 5, "num_blocks": 128})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [line["kind"] for line in lines[:3]] == ["setup", "snapshot", "snapshot"]
    assert [line["side"] for line in lines[1:3]] == ["a", "b"]
    assert lines[-1]["kind"] == "end"
    long = {"seconds": 600, "rate": 5}
    with (
        client.stream("GET", "/studio/compare", params=long) as one,
        client.stream("GET", "/studio/compare", params=long) as other,
    ):
        readers = [one.iter_lines(), other.iter_lines()]
        assert all("setup" in next(lines) for lines in readers)
        assert processes() == before + 2
        third = client.get("/studio/compare")
        assert third.status_code == 503
        assert server.context.lifecycle.num_answers == 0
    server.eventually(lambda: processes() == before, "who looks away ends it")
    for params, message in (
        ({"allocator": "best"}, "one of paged, contiguous-max"),
        ({"blocks": 4}, "a comparison takes against"),
        ({"rate": "fast"}, "a comparison takes against"),
        ({"arrivals": "recording"}, "one of made-up"),
        ({"recording": "/etc/passwd"}, "when the studio is started"),
    ):
        refused = client.get("/studio/compare", params=params)
        assert refused.status_code == 400
        assert message in refused.json()["error"]["message"]


def test_a_shutdown_ends_a_comparison(start_server: Any) -> None:
    server = start_server()
    url = f"{server.url}/studio/compare?seconds=600&rate=5"
    with httpx.Client(timeout=20) as client, client.stream("GET", url) as answer:
        lines = answer.iter_lines()
        next(lines)
        start = time.monotonic()
        server.server.should_exit = True
        with suppress(httpx.RemoteProtocolError):  # it is cut off
            for _ in lines:
                pass
        server.thread.join(20)
        assert time.monotonic() - start < 8
    server.dead = True


def test_without_what_node_builds_the_page_says_so(tmp_path: Path) -> None:
    from starlette.applications import Starlette

    async def get(static: Path, path: str) -> httpx.Response:
        app = Starlette(routes=Studio(static=static).routes())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    answer = asyncio.run(get(tmp_path, "/studio/"))
    assert answer.status_code == 503
    assert "make web" in answer.text
    (tmp_path / "index.html").write_text("<p>here</p>")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.js").write_text("1")
    answer = asyncio.run(get(tmp_path, "/studio/"))
    assert (answer.status_code, answer.text) == (200, "<p>here</p>")
    answer = asyncio.run(get(tmp_path, "/studio/files/a.js"))
    assert (answer.status_code, answer.text) == (200, "1")
    assert "javascript" in answer.headers["content-type"]


def test_it_can_be_switched_off(start_server: Any) -> None:
    server = start_server(studio=StudioSettings(enabled=False))
    for path in ("/studio", "/studio/", "/studio/feed", "/studio/about", "/studio/compare"):
        assert server.http().get(path).status_code == 404


def test_viewers_do_not_hold_up_a_shutdown(start_server: Any) -> None:
    server = start_server()
    with ask(server) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert server.context.lifecycle.num_answers == 0
        start = time.monotonic()
        server.server.should_exit = True
        server.thread.join(20)
        assert time.monotonic() - start < 3
        rest = b""
        while piece := connection.recv(65536):
            rest += piece
        assert rest.endswith(b"0\r\n\r\n")  # a proper end
    server.dead = True


def test_a_viewer_sees_the_engines_end(start_server: Any) -> None:
    server = start_server()
    server.dead = True
    viewer = Viewer(server)
    server.eventually(lambda: viewer.picture is not None, "the snapshot has come")
    server.executor.failure = RuntimeError("broken")
    server.http().post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 3})
    assert viewer.ended.wait(20)
    viewer.thread.join(5)


@pytest.mark.parametrize("name", ["run.ndjson", "run.ndjson.gz"])
def test_a_recording_ends_with_the_same_picture(
    start_server: Any, tmp_path: Path, chat_body: dict[str, Any], name: str
) -> None:
    path = tmp_path / name
    server = start_server(studio=StudioSettings(record=path))
    server.eventually(lambda: is_attached(server), "it is recorded")
    with watching(server) as viewer:
        for n in (1, 3):
            server.http().post("/v1/chat/completions", json={**chat_body, "n": n})
        server.eventually(lambda: viewer.shows(server), "the picture is the core's")
        last = viewer.picture.seq
        blocks = dict(viewer.picture.blocks)
    server.check_idle()
    server.server.should_exit = True
    server.thread.join(20)
    server.dead = True
    replayed: Picture | None = None
    for frame in frames_of(path):
        if replayed is None:
            assert isinstance(frame, Snapshot)
            replayed = Picture(frame)
        else:
            replayed.apply(frame)
        if replayed.seq == last:
            assert replayed.blocks == blocks
            break
    else:
        raise AssertionError(f"frame {last} is not in the recording")


def test_a_recording_is_kept_within_its_limit(
    start_server: Any, tmp_path: Path, chat_body: dict[str, Any]
) -> None:
    path = tmp_path / "run.ndjson"
    server = start_server(studio=StudioSettings(record=path, record_limit=120_000))
    before = tmp_path / "run.before.ndjson"

    def ask_until() -> bool:
        server.http().post("/v1/chat/completions", json={**chat_body, "n": 4, "max_tokens": 60})
        return before.exists()

    server.eventually(ask_until, "one file is full")
    server.eventually(lambda: path.exists() and path.stat().st_size > 0, "the next has begun")
    server.check_idle()
    server.server.should_exit = True
    server.thread.join(20)
    server.dead = True
    assert 60_000 <= before.stat().st_size < 120_000
    for part in (before, path):
        first, *rest = frames_of(part)
        assert isinstance(first, Snapshot)
        picture = Picture(first)
        for frame in rest:
            picture.apply(frame)


def test_the_past_is_told_to_whoever_asks(start_server: Any, chat_body: dict[str, Any]) -> None:
    server = start_server()
    with watching(server) as viewer:
        server.http().post("/v1/chat/completions", json=chat_body)
        server.eventually(lambda: len(viewer.frames) > 1, "something has happened")
        with server.http().stream("GET", "/studio/feed?past") as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            told = [decode(next(lines).removeprefix("data: ").encode()) for _ in range(2)]
        assert told == viewer.frames[:2]


def test_a_recording_that_cannot_be_written_disturbs_nobody(
    start_server: Any, tmp_path: Path, chat_body: dict[str, Any], caplog: Any
) -> None:
    server = start_server(studio=StudioSettings(record=tmp_path / "no" / "such" / "folder"))
    assert server.http().post("/v1/chat/completions", json=chat_body).status_code == 200
    server.eventually(lambda: "recording" in caplog.text, "the log says why")


def test_what_is_no_recording_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    with pytest.raises(LooseleafError, match=r"cannot read .*x\.ndjson"):
        list(frames_of(path))
    for content in ("", "{}\n", "not json\n", '{"kind":"delta","seq":1,"time":0}\n'):
        path.write_text(content)
        if content:
            with pytest.raises(LooseleafError, match=re.escape(f"{path} is no recording")):
                list(frames_of(path))
    first = {
        **{"kind": "snapshot", "format": 1, "seq": 0, "time": 0.0, "wall_time": 0.0, "model": ""},
        **{"block_size": 1, "num_blocks": 1, "block_bytes": 1},
        **{"blocks": [], "requests": [], "tables": []},
        "counters": {
            **{"steps": 0, "computed_tokens": 0, "output_tokens": 0, "prefix_queries": 0},
            **{"prefix_hits": 0, "preemptions": 0, "held_back": 0, "copies": 0},
        },
    }
    path.write_text(json.dumps(first) + '\n{"kind":"del')
    assert len(list(frames_of(path))) == 1
    path.write_text(json.dumps(first) + '\n{"kind":"other"}\n')
    with pytest.raises(LooseleafError, match="line 2 of"):
        list(frames_of(path))
    path.write_text(json.dumps({**first, "format": 99}) + "\n")
    with pytest.raises(LooseleafError, match="format 99"):
        list(frames_of(path))
