"""/studio/lessons: which there are, and one of them, whole or one scene of it."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from looseleaf.core.errors import LooseleafError
from looseleaf.server.errors import ApiError
from looseleaf.studio.lessons import registry
from looseleaf.studio.lessons.scene import encode


def lesson_routes() -> list[BaseRoute]:
    return [Route("/lessons", _list), Route("/lessons/{name}", _lesson)]


async def _list(request: Request) -> Response:
    return _json(registry.index())


async def _lesson(request: Request) -> Response:
    """All of its scenes; with controls in the query, the one scene that they set."""
    name, settings = str(request.path_params["name"]), dict(request.query_params)
    try:
        # In a thread: the first one who asks has it played, which may take a second.
        if not settings:
            return _json(await asyncio.to_thread(registry.payload_json, name))
        scene = await asyncio.to_thread(registry.scene, name, settings)
        return _json(await asyncio.to_thread(encode, scene))
    except registry.UnknownLessonError as error:
        return ApiError(404, str(error)).response()
    except LooseleafError as error:
        return ApiError(400, str(error)).response()


def _json(body: bytes) -> Response:
    headers = {"cache-control": "no-cache"}
    return Response(body, headers=headers, media_type="application/json")
