"""Errors in the form of the API that was asked, which follows from the path alone: so whatever
stands before the routes tells them as these do."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Scope

from looseleaf.server.anthropic.answer import error_response as anthropic_error
from looseleaf.server.errors import ApiError
from looseleaf.server.ollama.answer import error_response as ollama_error


def path_of(scope: Scope) -> str:
    """The path as the routes have it, whatever a proxy put before it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def error_form(path: str) -> Callable[[ApiError], Response]:
    """OpenAI's, but under the paths of the other APIs."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error
    if path.startswith("/api/"):
        return ollama_error
    return ApiError.response


def error_response(scope: Scope, error: ApiError) -> Response:
    """What whoever sent the request of `scope` is told."""
    return error_form(path_of(scope))(error)
