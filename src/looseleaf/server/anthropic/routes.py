"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send them."""

from starlette.requests import Request
from starlette.responses import Response

from looseleaf.server.anthropic.answer import MessageWriter
from looseleaf.server.anthropic.prompt import chat_request
from looseleaf.server.anthropic.protocol import CountRequest, MessagesRequest, TokenCount
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.stream import json_response
from looseleaf.server.turn_stream import answer_turn
from looseleaf.server.turns import Turn, prepare_turn


async def create_message(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields, turn = await off_loop(work_of(body), _prepare, context, body)
    generation = turn.start(context)
    writer = MessageWriter(generation, fields.model)
    generation.known_as(writer.answer_id)
    return await answer_turn(request, generation, turn, writer, stream=fields.stream)


async def count_tokens(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    return json_response(await off_loop(work_of(body), _counted, context, body))


def _prepare(context: ServerContext, body: bytes) -> tuple[MessagesRequest, Turn]:
    fields = decode(body, MessagesRequest)
    return fields, prepare_turn(context, chat_request(fields), {"stop": "stop_sequences"})


def _counted(context: ServerContext, body: bytes) -> TokenCount:
    fields = decode(body, CountRequest)
    return TokenCount(input_tokens=len(prepare_turn(context, chat_request(fields)).token_ids))
