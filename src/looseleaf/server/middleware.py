"""What every HTTP request goes through before it reaches a route."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.server.errors import shutting_down
from looseleaf.server.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

MAX_REQUEST_ID_BYTES = 256

_ALWAYS_OPEN = frozenset({"/health", "/ping", "/metrics"})


class RequestIdMiddleware:
    """Gives a client its own X-Request-Id back. Besides that it is only logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(scope)
        if request_id is None:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


class AccessLogMiddleware:
    """One line for each request, when its answer is complete or its client has gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), "-"

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            request_id = _request_id(scope)
            logger.info(
                "%s %.200s %s %.0f ms %s",
                scope["method"],
                ascii(scope["path"])[1:-1],  # which may hold line breaks
                status,
                1000 * (time.monotonic() - start),
                "-" if request_id is None else ascii(request_id.decode("latin-1")),
            )


class AdmissionMiddleware:
    """Counts the answers under way and, once the server shuts down, refuses further requests.

    Those about the server's own state are neither counted nor refused.
    """

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS_OPEN:
            await self._app(scope, receive, send)
        elif self._lifecycle.stopping:
            response = shutting_down().response()
            response.headers["connection"] = "close"
            await response(scope, receive, send)
        else:
            with self._lifecycle.answering():
                await self._app(scope, receive, send)


def _request_id(scope: Scope) -> bytes | None:
    if scope["type"] != "http":
        return None
    for name, value in scope["headers"]:
        if name == b"x-request-id" and len(value) <= MAX_REQUEST_ID_BYTES:
            return bytes(value)
    return None
