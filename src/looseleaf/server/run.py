"""A server on a socket, from start to stop."""

import logging
import socket
from collections.abc import Sequence

import uvicorn

from looseleaf.engine.build import Stack
from looseleaf.server.app import create_app
from looseleaf.server.context import DEFAULT_MAX_BODY_BYTES, ServerContext

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_SHUTDOWN_SECONDS = 30


class Server(uvicorn.Server):
    """Says what it serves, once it does. `urls` are where, which matters with port 0."""

    def __init__(self, config: uvicorn.Config, context: ServerContext) -> None:
        super().__init__(config)
        self.urls: list[str] = []
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        names = [s.getsockname() for server in self.servers for s in server.sockets]
        self.urls = [
            f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"
            for name in names
        ]
        logger.info(
            "serving %s at %s/v1; %s",
            ", ".join(self._context.model_names),
            "/v1, ".join(self.urls),
            self._context.memory,
        )


def make_server(
    context: ServerContext,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    log_level: str = "info",
    access_log: bool = False,
    shutdown_seconds: int = DEFAULT_SHUTDOWN_SECONDS,
) -> Server:
    """A server that is not running yet; `Server.run` blocks until `should_exit` is set.

    Port 0 is any free one. After a signal, requests have `shutdown_seconds` to end.
    """
    config = uvicorn.Config(
        create_app(context),
        host=host,
        port=port,
        log_level=log_level,
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=shutdown_seconds,
        log_config=None,
    )
    return Server(config, context)


def run_server(
    stack: Stack,
    *,
    model_names: Sequence[str] = (),
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    log_level: str = "info",
    access_log: bool = False,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    shutdown_seconds: int = DEFAULT_SHUTDOWN_SECONDS,
) -> None:
    """Serve `stack` until SIGINT or SIGTERM, then end what runs and close its engine.

    Logging is the caller's to set up. Raises SystemExit if the address cannot be had.
    """
    context = ServerContext.from_stack(stack, model_names, max_body_bytes=max_body_bytes)
    make_server(
        context,
        host=host,
        port=port,
        log_level=log_level,
        access_log=access_log,
        shutdown_seconds=shutdown_seconds,
    ).run()
