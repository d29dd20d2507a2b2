"""How busy the server is, told with each answer to whoever spreads requests over several: an ORCA
load report, in the header that Envoy and vLLM have for it."""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.engine.service import EngineService

ASKS, TELLS = b"endpoint-load-metrics-format", b"endpoint-load-metrics"


class LoadHeaderMiddleware:
    """For requests that ask for it, as TEXT or as JSON; others get none."""

    def __init__(self, app: ASGIApp, service: EngineService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = b""
        if scope["type"] == "http":
            wanted = next((value for name, value in scope["headers"] if name == ASKS), b"").upper()
        if wanted not in (b"TEXT", b"JSON"):
            await self._app(scope, receive, send)
            return

        async def send_with_load(message: Message) -> None:
            if message["type"] == "http.response.start":
                report = wanted + b" " + self._report(as_json=wanted == b"JSON").encode()
                message["headers"] = [*message["headers"], (TELLS, report)]
            await send(message)

        await self._app(scope, receive, send_with_load)

    def _report(self, *, as_json: bool) -> str:
        load = self._service.load()
        metrics = {
            "kv_cache_usage_perc": round(load.kv_usage, 6),
            "num_requests_waiting": load.num_waiting,
            "num_requests_running": load.num_running,
        }
        if as_json:
            return json.dumps({"named_metrics": metrics})
        return ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
