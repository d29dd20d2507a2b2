"""One turn's answer on its way out, for the APIs whose answers are made of parts."""

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from looseleaf.core.request import FinishReason
from looseleaf.engine.groups import Delta
from looseleaf.engine.service import EngineDeadError
from looseleaf.server.errors import ApiError, internal_error
from looseleaf.server.generation import Generation
from looseleaf.server.parts import News, Parts
from looseleaf.server.stream import EventStream, json_response, until_disconnect
from looseleaf.server.turns import Replies, Turn

logger = logging.getLogger(__name__)


class TurnWriter(Protocol):
    """What an API's answers look like. Each method returns the frames of a stream that say it;
    the writer is told the same things for a whole answer, whose frames nobody reads."""

    content_type: str

    def opening(self) -> Iterable[bytes]: ...

    def news(self, news: News, delta: Delta) -> Iterable[bytes]:
        """A part changed, by `delta` among others."""
        ...

    def closing(self, finish_reason: str | None, delta: Delta) -> Iterable[bytes]:
        """After the last part is closed. `finish_reason` is OpenAI's."""
        ...

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """The last frames, if something goes wrong once the stream has begun."""
        ...

    def whole(self) -> Any:
        """After `closing`."""
        ...


async def answer_turn(
    request: Request, generation: Generation, turn: Turn, writer: TurnWriter, *, stream: bool
) -> Response:
    """The answer as asked for. Closes `generation`, at once if the client goes away."""
    if stream:
        return EventStream(generation, frames(generation, turn, writer), writer.content_type)
    try:
        await until_disconnect(request.receive, generation.run())
    finally:
        generation.close()
    (sample,) = generation.samples
    if sample.finish_reason is FinishReason.ERROR:
        raise internal_error()
    delta = Delta(
        0,
        sample.text,
        tuple(sample.token_ids),
        tuple(sample.logprobs),
        sample.finish_reason,
        sample.stop_reason,
    )
    for _ in _told(writer, Replies(turn), Parts(), delta):
        pass
    return json_response(writer.whole())


async def frames(
    generation: Generation, turn: Turn, writer: TurnWriter
) -> AsyncGenerator[bytes, None]:
    """The whole stream; what goes wrong is in its last frames."""
    replies, parts = Replies(turn), Parts()
    try:
        for frame in writer.opening():
            yield frame
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                if delta.finish_reason is FinishReason.ERROR:
                    raise internal_error()
                for frame in _told(writer, replies, parts, delta):
                    yield frame
        return
    except EngineDeadError:
        error = generation.unavailable()
    except ApiError as raised:
        error = raised
    except Exception:
        logger.exception("a stream failed")
        error = internal_error()
    for frame in writer.failed(error):
        yield frame


def _told(writer: TurnWriter, replies: Replies, parts: Parts, delta: Delta) -> Iterable[bytes]:
    for news in parts.feed(replies.feed(0, delta)):
        yield from writer.news(news, delta)
    if delta.finish_reason is not None:
        for news in parts.end():
            yield from writer.news(news, delta)
        yield from writer.closing(replies.finish_reason(0, delta.finish_reason), delta)
