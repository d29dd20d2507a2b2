"""A server on a socket, from start to stop."""

import asyncio
import errno
import gc
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.build import Stack
from looseleaf.engine.engine import Engine
from looseleaf.server.app import create_app
from looseleaf.server.connections import ClientProtocol
from looseleaf.server.context import DEFAULT_MAX_BODY_BYTES, ServerContext
from looseleaf.server.keys import NO_KEYS, KeyRing
from looseleaf.server.limits import DEFAULT_LIMITS, Cors, Limits
from looseleaf.server.observing import DEFAULT_OBSERVING, Observing
from looseleaf.server.replies import DEFAULT_REPLIES, ReplySettings
from looseleaf.server.tls import REFRESH_SECONDS, TlsRefresh
from looseleaf.server.tracing import Tracing
from looseleaf.studio.settings import DEFAULT_STUDIO, StudioSettings

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_SHUTDOWN_SECONDS = 30

BACKLOG = 2048
CLOSING_SECONDS = 2
TICKS_PER_SECOND = 10
"""How long the last words to a client may take when the server stops."""


class Server(uvicorn.Server):
    """Says what it serves, once it does. `urls` are where, which matters with port 0.

    The first signal lets what runs end, for `shutdown_seconds`, while new requests get a 503. What
    is left then, or at the second signal, ends with an error.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        context: ServerContext,
        shutdown_seconds: float,
        *,
        exit_on_engine_failure: bool = False,
        refresh_tls: TlsRefresh | None = None,
    ) -> None:
        super().__init__(config)
        self._refresh_tls = refresh_tls
        self.urls: list[str] = []
        self.shutdown_seconds = shutdown_seconds
        self._context = context
        self._exit_on_engine_failure = exit_on_engine_failure

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """On `sockets`, or on one of its own. Raises LooseleafError as `bind` does."""
        await super().serve(sockets or [bind(self.config.host, self.config.port)])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started:
            return
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        for listener in sockets or ():
            server = await loop.create_server(
                self._new_protocol,
                sock=listener,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=self._context.limits.header_timeout if tls else None,
            )
            self.servers.append(server)
        self.urls = [self._url(s) for server in self.servers for s in server.sockets]
        logger.info(
            "serving %s at %s/v1; %s",
            ", ".join(self._context.model_names),
            "/v1, ".join(self.urls),
            self._context.memory,
        )
        keys, gate = len(self._context.keys), self._context.gate
        logger.info(
            "%s; at most %d requests wait, with %s prompt tokens; /metrics, /openapi.json%s",
            f"API keys: {keys}"
            if keys
            else "no API keys: whoever reaches this address is answered",
            gate.max_requests,
            gate.max_tokens,
            ", /studio" if self._context.studio.enabled else "",
        )

    def _new_protocol(self) -> ClientProtocol:
        return ClientProtocol(
            self._context.connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    def _url(self, listener: Any) -> str:
        """That of a unix socket is as web servers write it that pass requests on to one."""
        scheme = "http" if self.config.ssl is None else "https"
        name = listener.getsockname()
        if listener.family == socket.AF_UNIX:
            return f"{scheme}://unix:{name}:"
        return f"{scheme}://{_address(name[0], name[1])}"

    async def on_tick(self, counter: int) -> bool:
        refresh = self._refresh_tls
        due = counter % (REFRESH_SECONDS * TICKS_PER_SECOND) == 0
        if refresh is not None and due and await asyncio.to_thread(refresh.look):
            refresh.take()
        failed = self._context.service.failure is not None
        return await super().on_tick(counter) or (failed and self._exit_on_engine_failure)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        lifecycle = self._context.lifecycle
        lifecycle.stopping = True
        if lifecycle.num_answers:
            logger.info(
                "shutting down: %d requests have %.0f s to end; a second signal ends them now",
                lifecycle.num_answers,
                self.shutdown_seconds,
            )
        await self._until(
            lambda: self.force_exit or not lifecycle.num_answers, self.shutdown_seconds
        )
        for server in self.servers:
            server.close()
        await lifecycle.stop()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        await self._until(lambda: not connections, CLOSING_SECONDS)
        for connection in list(connections):  # of clients that do not read, or send half a request
            connection.transport.abort()
        await self._until(lambda: not connections, CLOSING_SECONDS)
        self.force_exit = False  # all is over by now, and the application is still to be told
        await super().shutdown(sockets)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition() and loop.time() < deadline:
            await asyncio.sleep(0.02)


def bind(host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> socket.socket:
    """A socket that listens, so that the address is had before a model is loaded for it.

    Clients that connect early are answered once the server runs. Of several addresses of `host`
    it is the first of IPv4, if there is one. Port 0 is any free one. Raises LooseleafError.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise LooseleafError(
            f"cannot serve at {_address(host, port)}: {host!r} is not an address of this machine "
            f"({error}); use one that is, such as {DEFAULT_HOST}, or 0.0.0.0 for all of them"
        ) from error
    family, kind, protocol, _, address = min(found, key=lambda item: item[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        # An address of which old connections are still being closed can be had at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise LooseleafError(
            f"cannot serve at {_address(host, port)}: {_reason(error)}; {_advice(error)}"
        ) from error
    return listener


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _advice(error: OSError) -> str:
    match error:
        case PermissionError():
            return "take a port of 1024 or above"
        case OSError(errno=errno.EADDRINUSE):
            return "stop what is serving there, or take another port (0 is any free one)"
        case _:
            return f"take a host that is an address of this machine, such as {DEFAULT_HOST}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_server(
    context: ServerContext,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    log_level: str = "info",
    access_log: bool = False,
    shutdown_seconds: float = DEFAULT_SHUTDOWN_SECONDS,
    root_path: str = "",
    exit_on_engine_failure: bool = False,
    tls: ssl.SSLContext | None = None,
    refresh_tls: TlsRefresh | None = None,
) -> Server:
    """A server that is not running yet; `Server.run` blocks until `should_exit` is set.

    `host` and `port` are where, unless `run` is given sockets; with `tls`, by https alone, whose
    certificate `refresh_tls` may replace: it is called every REFRESH_SECONDS. With `access_log`
    each request is logged in one line. After a signal, requests have `shutdown_seconds` to end.
    `root_path` is what a proxy puts before all paths.
    """
    config = uvicorn.Config(
        create_app(context, access_log=access_log),
        host=host,
        port=port,
        backlog=BACKLOG,
        lifespan="on",
        # What it says below that, we say ourselves.
        log_level="error" if log_level == "error" else "warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=context.limits.keep_alive,
        timeout_graceful_shutdown=CLOSING_SECONDS,
        root_path=root_path,
        log_config=None,
    )
    config.load()
    config.ssl = tls
    return Server(
        config,
        context,
        shutdown_seconds,
        exit_on_engine_failure=exit_on_engine_failure,
        refresh_tls=refresh_tls,
    )


def run_server(
    stack: Stack,
    *,
    model_names: Sequence[str] = (),
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    sockets: Sequence[socket.socket] | None = None,
    log_level: str = "info",
    access_log: bool = False,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    shutdown_seconds: float = DEFAULT_SHUTDOWN_SECONDS,
    replies: ReplySettings = DEFAULT_REPLIES,
    keys: KeyRing = NO_KEYS,
    limits: Limits = DEFAULT_LIMITS,
    cors: Cors | None = None,
    observing: Observing = DEFAULT_OBSERVING,
    root_path: str = "",
    exit_on_engine_failure: bool = True,
    watchers: Sequence[Callable[[Engine], None]] = (),
    tracing: Tracing | None = None,
    tls: ssl.SSLContext | None = None,
    refresh_tls: TlsRefresh | None = None,
    studio: StudioSettings = DEFAULT_STUDIO,
) -> None:
    """Serve `stack` until SIGINT or SIGTERM, then end what runs and close its engine.

    On `sockets`, as `bind` makes them, or else on `host` and `port`: then raises LooseleafError if
    that address cannot be had; also, unless `exit_on_engine_failure` is off, when the engine fails,
    at once. `watchers` look at the engine between its steps. Logging is the caller's to set up.
    """
    context = ServerContext.from_stack(
        stack,
        model_names,
        max_body_bytes=max_body_bytes,
        replies=replies,
        keys=keys,
        limits=limits,
        cors=cors,
        tracing=tracing,
        observing=observing,
        studio=studio,
    )
    context.service.watchers.extend(watchers)
    gc.freeze()  # all of it stays: looking through it again would hold everybody up for 15 ms
    make_server(
        context,
        host=host,
        port=port,
        log_level=log_level,
        access_log=access_log,
        shutdown_seconds=shutdown_seconds,
        root_path=root_path,
        exit_on_engine_failure=exit_on_engine_failure,
        tls=tls,
        refresh_tls=refresh_tls,
    ).run(sockets=list(sockets) if sockets else None)
    if exit_on_engine_failure and context.service.failure is not None:
        raise LooseleafError(f"the engine has failed: {context.service.failure!r}")
