"""Answers on their way out: whole, or as server-sent events; and a client that goes away."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from looseleaf.core.request import FinishReason
from looseleaf.engine.groups import Delta
from looseleaf.engine.service import EngineDeadError
from looseleaf.server.errors import ApiError, ClientGoneError, internal_error
from looseleaf.server.generation import Generation
from looseleaf.server.protocol import GenerationRequest, Usage

T = TypeVar("T")

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

SSE = "text/event-stream; charset=utf-8"

REQUESTS_HEADER = b"x-looseleaf-requests"
MAX_NAMES = 8

_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_encoder = msgspec.json.Encoder()


class AnswerFormat(Protocol):
    """What an endpoint's answers look like. A choice goes through `opening`, any number of
    `piece`s, and `closing`."""

    def whole(self, generation: Generation) -> msgspec.Struct: ...

    def chunk(
        self, choices: list[msgspec.Struct], usage: Usage | UnsetType | None
    ) -> msgspec.Struct: ...

    def opening(self, generation: Generation, index: int) -> msgspec.Struct | None:
        """What comes before the first piece, if anything does."""
        ...

    def piece(self, index: int, delta: Delta) -> msgspec.Struct | None:
        """None if there is nothing to show yet."""
        ...

    def closing(self, index: int, delta: Delta) -> msgspec.Struct: ...


async def respond(
    request: Request, fields: GenerationRequest, generation: Generation, form: AnswerFormat
) -> Response:
    """The answer as asked for. Closes `generation`, at once if the client goes away."""
    if fields.stream:
        return EventStream(generation, events(generation, form, fields))
    try:
        await until_disconnect(request.receive, generation.run())
    finally:
        generation.close()
    if any(sample.finish_reason is FinishReason.ERROR for sample in generation.samples):
        raise internal_error()
    return json_response(form.whole(generation))


def json_response(body: Any) -> Response:
    return Response(_encoder.encode(body), media_type="application/json")


def sse(body: Any) -> bytes:
    return b"data: " + _encoder.encode(body) + b"\n\n"


async def events(
    generation: Generation, form: AnswerFormat, fields: GenerationRequest
) -> AsyncGenerator[bytes, None]:
    """The stream's frames. It ends with [DONE] or, if something failed, with an error event."""
    options = fields.stream_options
    include_usage = bool(options and options.include_usage)
    continuous = bool(include_usage and options and options.continuous_usage_stats)

    def frame(choice: msgspec.Struct) -> bytes:
        usage = generation.usage() if continuous else None if include_usage else UNSET
        return sse(form.chunk([choice], usage))

    opened: set[int] = set()
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                if delta.finish_reason is FinishReason.ERROR:
                    raise internal_error()
                if index not in opened:
                    opened.add(index)
                    opening = form.opening(generation, index)
                    if opening is not None:
                        yield frame(opening)
                piece = form.piece(index, delta)
                if piece is not None:
                    yield frame(piece)
                if delta.finish_reason is not None:
                    yield frame(form.closing(index, delta))
        if include_usage:
            yield sse(form.chunk([], generation.usage()))
    except EngineDeadError:
        yield sse(generation.unavailable().body())
        return
    except ApiError as error:
        yield sse(error.body())
        return
    except Exception:
        logger.exception("a stream failed")
        yield sse(internal_error().body())
        return
    yield DONE


class EventStream(Response):
    """Sends frames until there are no more or the client has gone, then closes the generation, if
    there is one that is to end with it."""

    def __init__(
        self,
        generation: Generation | None,
        frames: AsyncGenerator[bytes, None],
        content_type: str = SSE,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [(b"content-type", content_type.encode()), *_HEADERS]
        if generation is not None:
            # What the studio's feed and the logs call them.
            names = ",".join(group.request_id for group in generation.groups[:MAX_NAMES])
            self.raw_headers.append((REQUESTS_HEADER, names.encode()))
        self._generation = generation
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(send))
        except (ClientGoneError, OSError):
            pass  # nobody is left to tell
        finally:
            if self._generation is not None:
                self._generation.close()
            await self._frames.aclose()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; if the client goes first, it is cancelled and ClientGoneError raised.

    The body of the request must have been read.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
