"""/studio: the page, and the feed or the recording that it shows.

The page itself is for anybody; where the server has API keys, it asks for one before it gets the
feed, which it reads with `fetch`: an EventSource could not send the key.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from looseleaf.core.errors import LooseleafError
from looseleaf.server.compare import Comparisons
from looseleaf.server.errors import ApiError, ClientGoneError
from looseleaf.server.stream import SSE, json_response, until_disconnect
from looseleaf.server.studio_lessons import lesson_routes
from looseleaf.studio.export import TEMPLATE
from looseleaf.studio.hub import Hub, TooManyViewersError
from looseleaf.studio.recording import Recorder, lines_of, set_aside
from looseleaf.studio.settings import RECORD_LIMIT

STATIC = Path(__file__).resolve().parents[1] / "studio" / "static"
"""What `make web` builds."""

PATH = "/studio"
FEED = f"{PATH}/feed"
LINES = "application/x-ndjson"

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Looseleaf studio</title>
<h1>The studio's page is missing from this installation</h1>
<p>It is built by <code>make web</code>, which needs Node.js 20.19 or later, in a checkout of the
source; wheels have it. The feed that it would show is at <a href="feed">feed</a>: one JSON object
after the other, as docs/feed.md tells.</p>
</html>
"""

RECORD_WAITING = 600
"""Frames that a recording may be behind: a minute, where the disk is slow."""

logger = logging.getLogger(__name__)


class Studio:
    """What /studio shows: the feed of `hub`, or else a recording. `chats` says whether the page can
    have a chat answered here."""

    def __init__(
        self,
        hub: Hub | None = None,
        *,
        recording: Path | None = None,
        record: Path | None = None,
        record_limit: int = RECORD_LIMIT,
        chats: bool = False,
        model: str = "",
        static: Path = STATIC,
    ) -> None:
        self._hub, self._recording = hub, recording
        self._record, self._record_limit = record, record_limit
        self._comparisons = Comparisons(recording)
        self._about = {
            "source": "recording" if hub is None else "live",
            "chats": chats,
            "model": model,
            "compare": self._comparisons.arrivals,
        }
        self._static = static
        self._recorder: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        routes = [
            Route("/", self._page),
            Route("/about", self._tell_about),
            Route("/files/{name}", self._file),
            *lesson_routes(),
            Route("/template", self._template),
            Route("/compare", self._compare),
        ]
        if self._hub is not None:
            routes.append(Route("/feed", self._feed))
        if self._recording is not None:
            routes.append(Route("/recording", self._play))
        return [Mount(PATH, routes=routes)]

    def start(self) -> None:
        if self._record is not None and self._hub is not None:
            self._recorder = asyncio.create_task(
                _record(self._hub, self._record, self._record_limit)
            )

    async def stop(self) -> None:
        """After the engine has ended, or while it runs."""
        self._comparisons.close()
        if self._hub is not None:
            await self._hub.close()
        if self._recorder is not None:
            await asyncio.gather(self._recorder, return_exceptions=True)

    async def _page(self, request: Request) -> Response:
        index = self._static / "index.html"
        if not index.is_file():
            return HTMLResponse(_NOT_BUILT, status_code=503, headers=_HEADERS)
        return FileResponse(index, headers={**_HEADERS, "cache-control": "no-cache"})

    async def _file(self, request: Request) -> Response:
        folder = self._static / "files"
        path = folder / str(request.path_params["name"])
        if path.parent != folder or not path.is_file():
            raise HTTPException(404)
        # Their names have a hash of what is in them.
        headers = {**_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return FileResponse(path, headers=headers)

    async def _template(self, request: Request) -> Response:
        """The page in one file, for the page to fill in; not to be looked at as it is."""
        path = self._static / TEMPLATE
        if not path.is_file():
            raise HTTPException(404)
        headers = {**_HEADERS, "cache-control": "no-cache"}
        return FileResponse(path, headers=headers, media_type="text/plain; charset=utf-8")

    async def _tell_about(self, request: Request) -> Response:
        return json_response(self._about)

    async def _feed(self, request: Request) -> Response:
        assert self._hub is not None
        try:
            past = "past" in request.query_params
            return _Stream(_events(self._hub.watch(past=past)), SSE)
        except TooManyViewersError as error:
            return ApiError(503, str(error)).response()

    async def _compare(self, request: Request) -> Response:
        try:
            return _Stream(self._comparisons.start(request), LINES)
        except ApiError as error:
            return error.response()

    async def _play(self, request: Request) -> Response:
        assert self._recording is not None
        return _Stream(_in_thread(lines_of(self._recording)), LINES)


async def _record(hub: Hub, path: Path, limit: int) -> None:
    """Until the engine ends, or the disk fails: that is said, and disturbs nothing else."""
    try:
        while await _record_file(hub, path, limit):
            before = await asyncio.to_thread(set_aside, path)
            logger.info("the studio's recording goes on in a new %s; %s is before it", path, before)
    except (OSError, LooseleafError) as error:
        logger.error("the studio's recording %s ends here: %s", path, error)


async def _record_file(hub: Hub, path: Path, limit: int) -> bool:
    """Whether it is full."""
    recorder = await asyncio.to_thread(Recorder, path, limit)
    try:
        async with aclosing(hub.watch(RECORD_WAITING)) as frames:
            async for frame in frames:
                if frame:
                    await asyncio.to_thread(recorder.write, frame)
                    if recorder.full:
                        return True
        return False
    finally:
        await asyncio.to_thread(recorder.close)


async def _events(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        async for frame in frames:
            yield b"data: " + frame + b"\n\n" if frame else b":\n\n"


async def _in_thread(lines: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    iterator = iter(lines)
    while (line := await asyncio.to_thread(next, iterator, b"")) != b"":
        yield line


class Pieces(Protocol):
    """What an asynchronous generator is too."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Stream(Response):
    """Sends pieces until there are no more or the client has gone."""

    def __init__(self, pieces: Pieces, content_type: str) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", content_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            with suppress(ClientGoneError, OSError):  # nobody is left to tell
                await until_disconnect(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
