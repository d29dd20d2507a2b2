"""Serving at a unix socket."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.server.unix_socket import unix_socket


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with unix_socket(tmp_path / "looseleaf.sock") as listener:
        yield listener


def test_the_official_client_over_a_unix_socket(listener: socket.socket, start_server: Any) -> None:
    path = listener.getsockname()
    server = start_server(sockets=[listener])
    assert server.url == f"http://unix:{path}:"
    with (
        httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=30) as http,
        openai.OpenAI(base_url="http://any/v1", api_key="none", http_client=http) as client,
    ):
        made = client.completions.create(model="tiny", prompt="x", max_tokens=3)
        assert made.usage is not None
        assert made.usage.completion_tokens == 3
        chunks = client.completions.create(model="tiny", prompt="x", max_tokens=9, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "cdefghijk"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_who_may_connect(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    before = os.umask(0o077)
    try:
        with unix_socket(path, mode):
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_two_at_one_path(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        unix_socket(path),
        pytest.raises(LooseleafError, match=f"{path}: somebody listens there"),
        unix_socket(path),
    ):
        pass
    # What the first one left (nothing) and what the second one did not take.
    with unix_socket(path):
        assert path.is_socket()


def test_of_many_that_start_at_once_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    leave_behind(path)
    done, barrier = threading.Event(), threading.Barrier(8)

    def serve(_: int) -> bool:
        barrier.wait()
        try:
            with unix_socket(path):
                done.wait(20)
                return True
        except LooseleafError:
            return False
        finally:
            if not done.is_set():
                refused.release()

    refused = threading.Semaphore(0)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(serve, number) for number in range(8)]
        for _ in range(7):
            assert refused.acquire(timeout=20)
        done.set()
        assert sorted(f.result(20) for f in found) == [False] * 7 + [True]
    assert not path.exists()


def leave_behind(path: Path) -> None:
    """A socket's file as a server leaves it that was killed."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()


def test_what_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    leave_behind(path)
    with unix_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_a_successor_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with unix_socket(path):
        path.rename(tmp_path / "moved")
        leave_behind(path)
    assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_but_a_socket_is_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case _:
            leave_behind(tmp_path / "t")
            path.symlink_to(tmp_path / "t")
    with pytest.raises(LooseleafError, match="something else"), unix_socket(path):
        pass
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "message"), [("none/s", "no such file"), ("x" * 120, "path too long")]
)
def test_a_path_that_cannot_be_had(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(LooseleafError, match=message), unix_socket(tmp_path / name):
        pass
