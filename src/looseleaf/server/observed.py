"""What is told of every HTTP request: a count, and a line in the log."""

import logging
import time
from collections.abc import Hashable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.server.call import current
from looseleaf.server.error_forms import path_of
from looseleaf.server.metrics import Metrics
from looseleaf.server.middleware import ABOUT_ITSELF, request_id_of

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499


class ObservedMiddleware:
    """Stands before everything else, so that what the others refuse is told too.

    Counts by route, whose path `routes` has by its endpoint; those about the server's own state are
    not counted. With `log_requests` there is a line for each request, when its answer is complete
    or its client has gone. Its record has the `fields` of a structured log.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Mapping[Any, str], *, log_requests: bool
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), 0
        path = path_of(scope)  # as it came: what is mounted below another path sees less of it

        def send_and_look(message: Message) -> Any:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, send_and_look)
        except Exception:
            status = status or 500
            raise
        finally:
            if path not in ABOUT_ITSELF:
                endpoint = scope.get("endpoint")
                known = self._routes.get(endpoint) if isinstance(endpoint, Hashable) else None
                handler = known or (path if path in self._routes.values() else "none")
                counted = status or _CLIENT_CLOSED_REQUEST
                self._metrics.answered(scope["method"], handler, counted)
            if self._log_requests:
                _log(scope, status, 1000 * (time.monotonic() - start))


def _log(scope: Scope, status: int, milliseconds: float) -> None:
    request_id = request_id_of(scope)
    shown_id = None if request_id is None else request_id.decode("latin-1")
    tenant = scope.get("state", {}).get("tenant") or None
    # Which may hold line breaks, or be long.
    path = ascii(scope["path"])[1:-1][:200]
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": path,
        "status": status or None,
        "duration_ms": round(milliseconds, 3),
        "request_id": shown_id,
        "key": tenant,
    }
    tokens = ""
    told = current().told
    if told is not None:
        fields |= told()
        tokens = f" {fields['prompt_tokens']}+{fields['completion_tokens']} tokens"
    logger.info(
        "%s %s %s %.0f ms %s%s%s",
        scope["method"],
        path,
        status or "-",
        milliseconds,
        "-" if shown_id is None else ascii(shown_id),
        "" if tenant is None else f" {tenant}",
        tokens,
        extra={"fields": fields},
    )
