"""What every HTTP request goes through before it reaches a route."""

import asyncio
import math

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.server.call import Call, begin, current
from looseleaf.server.error_forms import error_response, path_of
from looseleaf.server.errors import ApiError, shutting_down, too_slow, unauthorized
from looseleaf.server.gate import Gate
from looseleaf.server.keys import ANYBODY, KeyRing, Tenant
from looseleaf.server.lifecycle import Lifecycle

MAX_REQUEST_ID_BYTES = 256

_ABOUT_LIFE = frozenset({"/health", "/ping", "/ready"})
"""What whoever watches over a server asks, without a key."""
_GENERATES = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/api/chat", "/api/generate"),
    }
)
"""Paths whose requests are counted and limited. What another one submits is only counted."""
_PAGE = frozenset({"/studio", "/studio/"})
"""The studio's: the same everywhere, and without a key it shows nothing. A browser that opens it
has no way to send one."""
_STUDIO = frozenset({"/studio/about", "/studio/feed", "/studio/compare"})
ABOUT_ITSELF = _ABOUT_LIFE | _PAGE | _STUDIO | {"/metrics"}


class RequestIdMiddleware:
    """Gives a client its own X-Request-Id back. Besides that it is only logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        if request_id is None:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


class KeyMiddleware:
    """Lets nobody in without a key, where there are keys, but those who ask whether it lives, or
    for a page.

    `scope["state"]["tenant"]` is the label of whoever asks, "" where there are no keys.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope) if self._keys else ANYBODY
        if tenant is None and _is_open(scope):
            tenant = ANYBODY
        if tenant is not None:
            scope.setdefault("state", {})["tenant"] = tenant.label
            begin(Call(tenant, asyncio.get_running_loop().time()))
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(scope, unauthorized())(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _tenant(self, scope: Scope) -> Tenant | None:
        for name, value in scope["headers"]:
            key = value if name == b"x-api-key" else None
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                key = value[7:]
            tenant = None if key is None else self._keys.tenant(key.strip())
            if tenant is not None:
                return tenant
        return None


class AdmissionMiddleware:
    """Counts the answers under way and, once the server shuts down, refuses further requests.

    Those about the server's own state are neither counted nor refused.
    """

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_of(scope) in ABOUT_ITSELF:
            await self._app(scope, receive, send)
        elif self._lifecycle.stopping:
            response = error_response(scope, shutting_down())
            response.headers["connection"] = "close"
            await response(scope, receive, send)
        else:
            with self._lifecycle.answering():
                await self._app(scope, receive, send)


class GateMiddleware:
    """Refuses what there is no room for before it reads it, gives clients a time to send their
    bodies in, and requests a time to end in."""

    def __init__(
        self, app: ASGIApp, gate: Gate, *, read_timeout: float, request_timeout: float | None
    ) -> None:
        self._app = app
        self._gate = gate
        self._read_timeout = read_timeout
        self._request_timeout = request_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = current()
        receive = self._in_time(receive, call)
        if scope["method"] != "POST" or path_of(scope) not in _GENERATES:
            await self._app(scope, receive, send)
            return
        try:
            call.limit(self._request_timeout, "--request-timeout")
            call.limit(_seconds(_header(scope, b"x-request-timeout")), "X-Request-Timeout")
            length = _header(scope, b"content-length")
            self._gate.enter(call, int(length) if length.isdigit() else 0)
        except ApiError as error:
            await error_response(scope, error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._gate.leave(call)

    def _in_time(self, receive: Receive, call: Call) -> Receive:
        """The same, until the body is complete or its time is over: then it raises ApiError."""
        complete = False

        async def receive_in_time() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(call.arrival + self._read_timeout):
                    message = await receive()
            except TimeoutError:
                raise too_slow(self._read_timeout) from None
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        return receive_in_time


def _is_open(scope: Scope) -> bool:
    path = path_of(scope)
    if path in _ABOUT_LIFE:
        return True
    looks = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    return looks and (path in _PAGE or path.startswith("/studio/files/"))


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == wanted), b"")


def _seconds(text: bytes) -> float | None:
    """NaN for what is no number."""
    try:
        return float(text) if text else None
    except ValueError:
        return math.nan


def request_id_of(scope: Scope) -> bytes | None:
    """The client's own, unless it is far too long."""
    if scope["type"] != "http":
        return None
    for name, value in scope["headers"]:
        if name == b"x-request-id" and len(value) <= MAX_REQUEST_ID_BYTES:
            return bytes(value)
    return None
