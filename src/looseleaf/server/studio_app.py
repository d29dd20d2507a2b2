"""The studio by itself, without a server of models."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from looseleaf.server.studio import PATH, Studio

logger = logging.getLogger(__name__)

Work = Callable[[], Coroutine[None, None, None]]


def create_studio_app(studio: Studio, work: Work | None = None) -> Starlette:
    """`work` goes on for as long as the application does."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = None if work is None else asyncio.create_task(work())
        studio.start()
        try:
            yield
        finally:
            await studio.stop()
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def home(request: Request) -> Response:
        return RedirectResponse(f"{PATH}/")

    return Starlette(routes=[Route("/", home), *studio.routes()], lifespan=lifespan)


class StudioServer(uvicorn.Server):
    """Ends when it is told to, and its viewers with it."""

    def __init__(self, studio: Studio, work: Work | None = None) -> None:
        self._studio = studio
        app = create_studio_app(studio, work)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="on",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._studio.stop()
        await super().shutdown(sockets)
