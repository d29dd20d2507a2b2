"""What an operator asks of a running server: its load, its cache emptied, a request ended."""

import asyncio

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.engine.engine import Engine
from looseleaf.server.body import decode, off_loop, read_body
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import ApiError
from looseleaf.server.stream import json_response


class Load(Struct, kw_only=True):
    """`server_load` is the number of answers under way. Of clients there are so many `connections`,
    and on the event loop so many `tasks`, with what answers this: at rest they do not grow."""

    server_load: int
    connections: int
    tasks: int


class Cancelled(Struct, kw_only=True):
    id: str
    object: str = "request"
    cancelled: bool = True


class AbortRequest(Struct, kw_only=True):
    request_ids: list[str]


class Aborted(Struct, kw_only=True):
    """How many of the ids belonged to an answer under way."""

    num_aborted: int


async def load(context: ServerContext, request: Request) -> Response:
    return json_response(
        Load(
            server_load=len(context.answers),
            connections=len(context.connections),
            tasks=len(asyncio.all_tasks()),
        )
    )


async def reset_prefix_cache(context: ServerContext, request: Request) -> Response:
    """Blocks that somebody holds stay with their holder; only, nobody else finds them any more."""
    await context.service.call(Engine.forget_cache)
    return Response()


async def cancel_request(context: ServerContext, request: Request) -> Response:
    answer_id = request.path_params["request_id"]
    if not context.answers.cancel(answer_id):
        raise ApiError(404, "no answer with that id is under way; it may have ended")
    return json_response(Cancelled(id=answer_id))


async def abort_requests(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields = await off_loop(len(body), decode, body, AbortRequest)
    ids = dict.fromkeys(fields.request_ids)
    return json_response(Aborted(num_aborted=sum(map(context.answers.cancel, ids))))
