"""Addresses to serve at."""

import asyncio
import socket
from typing import Any

import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.server import run
from looseleaf.server.run import bind, make_server


def test_an_address_is_taken_at_once() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(LooseleafError, match=rf"127\.0\.0\.1:{port}: .*in use; stop what"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "x" * 300])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(LooseleafError, match=rf"{host}:8123: .*address of this machine.*127"):
        bind(host, 8123)


def test_a_port_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run.socket, "socket", Refusing)
    with pytest.raises(LooseleafError, match=r":80: permission denied; .*1024"):
        bind("127.0.0.1", 80)


def test_a_name_with_addresses_of_both_kinds_is_served_at_the_older() -> None:
    with bind("localhost", 0) as listener:
        assert listener.family is socket.AF_INET


async def test_a_server_takes_a_socket_or_binds_its_own(server: Any) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(LooseleafError, match=f":{port}: .*in use"):
        await make_server(server.context, port=port).serve()


async def test_a_socket_that_was_bound_before(start_server: Any) -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as early:
        early.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        early.setblocking(False)
        server = start_server(sockets=[listener])
        assert server.url == f"http://127.0.0.1:{port}"
        answer = await asyncio.get_running_loop().sock_recv(early, 1000)
        assert answer.startswith(b"HTTP/1.1 200")
