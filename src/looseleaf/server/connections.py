"""Connections of clients: how many there are, and how long each may keep the server waiting.

uvicorn's protocol bounds neither the size of a request's head nor the time that it takes to come,
and a byte now and then keeps a connection for good.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from looseleaf.server.errors import ApiError
from looseleaf.server.limits import SPARE_CONNECTIONS, Limits

LINGER_SECONDS = 2.0
"""How long what a client still sends is dropped after it was refused: with data unread, closing
would take the answer away from it."""
STALLED_SECONDS = 120.0
"""How long a client may read nothing of what waits for it."""


class Connections:
    """Those of one server. Belongs to the event loop's thread.

    Where there are as many as there may be, a new one takes the place of the one that has waited
    for a request the longest.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = limits.connections()
        self._open: set[ClientProtocol] = set()
        self._waiting: dict[ClientProtocol, None] = {}
        """Of whose next request there is no whole head, in the order since when."""

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: "ClientProtocol") -> None:
        self._open.add(connection)
        if len(self._open) <= self._most:
            return
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            self.busy(oldest)
            oldest.leave()
        elif len(self._open) <= self._most + SPARE_CONNECTIONS:
            connection.refuse(_all_taken(self._most))
        else:
            connection.transport.abort()

    def waits(self, connection: "ClientProtocol") -> None:
        self._waiting[connection] = None

    def busy(self, connection: "ClientProtocol") -> None:
        self._waiting.pop(connection, None)

    def closed(self, connection: "ClientProtocol") -> None:
        self.busy(connection)
        self._open.discard(connection)


class ClientProtocol(HttpToolsProtocol):
    """One connection: uvicorn's protocol, with limits on what it waits for."""

    def __init__(self, connections: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self._all = connections
        self._limits = connections.limits
        self._num_unread = 0
        """Bytes since the parser last had something to tell."""
        self._in_body = False
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None
        """Until the end of a head, or of a body that is of no use any more, must have come."""
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._all.opened(self)
        if not self._refused:
            self._all.waits(self)
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._forget()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._timer is None and not self._in_body:
            self._start_timer()
        limit = self._limits.max_header_bytes
        while data and not (self._refused or self.transport.is_closing()):
            room = limit - self._num_unread
            if room == 0:
                self.refuse(_too_large(limit))
                return
            piece, data = data[:room], data[room:]
            self._num_unread += len(piece)
            super().data_received(piece)

    def on_headers_complete(self) -> None:
        self._num_unread = 0
        self._stop_timer()
        self._all.busy(self)
        super().on_headers_complete()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._num_unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unread = 0
        self._in_body = False
        super().on_message_complete()
        if self._answered:
            self._stop_timer()
            self._start_timer()
            self._all.waits(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self.leave()
        elif self._answered and self._in_body:
            self._start_timer()
        elif self._answered:
            self._all.waits(self)

    def timeout_keep_alive_handler(self) -> None:
        self.leave()

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError(400, "what came is not a request of HTTP/1.1"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def refuse(self, error: ApiError) -> None:
        """Answer what came in place of a request's head, and close."""
        self._refused = True
        self._stop_timer()
        self._all.busy(self)
        if self._in_body or not self._answered:
            self.leave()
            return
        response = error.response()
        head = [*self.server_state.default_headers, *response.raw_headers]
        self.transport.write(
            STATUS_LINE[error.status]
            + b"".join(name + b": " + value + b"\r\n" for name, value in head)
            + b"connection: close\r\n\r\n"
            + bytes(response.body)
        )
        self._timer = self.loop.call_later(LINGER_SECONDS, self.leave)

    def leave(self) -> None:
        """Close, once the client has read what there is."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    @property
    def _answered(self) -> bool:
        """Whether no answer is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._limits.header_timeout, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self._answered:
            self._start_timer()  # what began is the head after that of the answer under way
        elif self._num_unread and not self._in_body:
            self.refuse(_too_late(self._limits.header_timeout))
        else:
            self.leave()

    def _watch_reader(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def _forget(self) -> None:
        self._stop_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._all.closed(self)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        431, f"the head of the request has more than {limit} bytes, which is the limit here"
    )


def _too_late(seconds: float) -> ApiError:
    return ApiError(
        408, f"the head of the request had not come within {seconds:g} s, which is the limit here"
    )


def _all_taken(most: int) -> ApiError:
    return ApiError(
        503,
        f"the server has {most} connections, which is its limit: try again",
        headers={"retry-after": "1"},
    )
