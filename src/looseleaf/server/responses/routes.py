"""/v1/responses: to make one, and to read, delete and cancel those that were stored."""

import hashlib
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.server.body import THREAD_BYTES, decode, off_loop, read_body, work_of
from looseleaf.server.call import current
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import ApiError, invalid
from looseleaf.server.keys import ANYBODY
from looseleaf.server.protocol import ChatRequest
from looseleaf.server.responses.answer import ResponseWriter
from looseleaf.server.responses.background import Background
from looseleaf.server.responses.prompt import chat_request, check_supported, input_messages
from looseleaf.server.responses.protocol import Deleted, ResponseAnswer, ResponsesRequest
from looseleaf.server.responses.store import Record
from looseleaf.server.stream import EventStream, json_response
from looseleaf.server.turn_stream import answer_turn
from looseleaf.server.turns import Turn, prepare_turn

_NAMES = {"max_tokens": "max_output_tokens", "messages": "input", "response_format": "text"}


async def create_response(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    owner = _owner(request)
    fields = await off_loop(len(body), decode, body, ResponsesRequest)
    earlier = _earlier(context, fields, owner)
    # A format makes a grammar, and a conversation may be long.
    size = THREAD_BYTES + 1 if fields.text is not None or earlier else work_of(body)
    messages, chat, turn = await off_loop(size, _prepare, context, fields, earlier)
    if fields.background:
        context.responses.check_room()
    generation = turn.start(context)
    background = Background(generation, logged=fields.stream) if fields.background else None

    def keep(answer: ResponseAnswer, said: list[dict[str, Any]]) -> None:
        if background is not None:
            background.said = said
        elif fields.store:
            context.responses.put(answer.id, Record(owner, answer, messages + said))

    writer = ResponseWriter(generation, fields, context.tokenizer, keep, logprobs=chat.logprobs)
    generation.known_as(writer.answer.id)
    if background is None:
        return await answer_turn(request, generation, turn, writer, stream=fields.stream)
    background.start(context, turn, writer, Record(owner, writer.answer, messages, background))
    if fields.stream:
        return EventStream(None, background.follow(0))
    return json_response(writer.answer)


async def show_response(context: ServerContext, request: Request) -> Response:
    """With `?stream=true` the events of one that was made in the background, from the beginning or
    after the one that `starting_after` numbers."""
    record = _found(context, request)
    background, first = record.background, _first_event(request)
    if first is None:
        answer = record.answer if background is None else background.shown(record.answer)
        return json_response(answer)
    if background is None or background.events is None:
        raise invalid(
            "there are no events of this response: they are kept of those that were asked for with "
            "background and stream",
            "stream",
        )
    return EventStream(None, background.follow(first))


async def delete_response(context: ServerContext, request: Request) -> Response:
    """One that goes on in the background is cancelled."""
    record = _found(context, request)
    context.responses.delete(record.answer.id)
    if record.background is not None:
        context.answers.cancel(record.answer.id)
    return json_response(Deleted(id=record.answer.id))


async def cancel_response(context: ServerContext, request: Request) -> Response:
    """Of one in the background, also when it has ended: then it is shown as it is."""
    answer = _found(context, request).answer
    if context.answers.cancel(answer.id):
        return json_response(msgspec.structs.replace(answer, status="cancelled"))
    if not answer.background:
        raise invalid("the response has ended, so that there is nothing left to cancel")
    return json_response(answer)


def _prepare(
    context: ServerContext, fields: ResponsesRequest, earlier: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], ChatRequest, Turn]:
    check_supported(fields)
    messages = earlier + input_messages(fields.input)
    chat = chat_request(fields, messages)
    return messages, chat, prepare_turn(context, chat, _NAMES)


def _earlier(context: ServerContext, fields: ResponsesRequest, owner: str) -> list[dict[str, Any]]:
    if fields.previous_response_id is None:
        return []
    record = context.responses.get(fields.previous_response_id, owner)
    if record is None:
        raise ApiError(
            404,
            "there is no response with the id in previous_response_id (any more): it was not "
            "stored, or has been forgotten since; send the conversation in input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if record.answer.status in ("queued", "in_progress"):
        raise invalid(
            "the response in previous_response_id is still under way: wait for its end",
            "previous_response_id",
        )
    return record.messages


def _found(context: ServerContext, request: Request) -> Record:
    record = context.responses.get(request.path_params["response_id"], _owner(request))
    if record is None:
        raise _missing()
    return record


def _missing() -> ApiError:
    return ApiError(404, "there is no response with that id (any more)")


def _first_event(request: Request) -> int | None:
    """The number of the first event to send; None if none are asked for. Raises ApiError."""
    stream = request.query_params.get("stream", "false")
    if stream not in ("true", "false"):
        raise invalid("stream must be true or false", "stream")
    after = request.query_params.get("starting_after", "")
    if after and not (stream == "true" and after.isascii() and after.isdigit()):
        raise invalid(
            "starting_after goes with stream=true, and must be a number", "starting_after"
        )
    if stream == "false":
        return None
    return int(after[:18]) + 1 if after else 0


def _owner(request: Request) -> str:
    """Tells API keys apart without keeping them; where the server has none, what clients send as
    theirs."""
    tenant = current().tenant
    if tenant is not ANYBODY:
        return tenant.label
    headers = request.headers
    key = headers.get("authorization") or headers.get("x-api-key") or ""
    return hashlib.sha256(key.encode()).hexdigest()
