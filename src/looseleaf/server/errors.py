"""Errors as OpenAI's clients expect them: one envelope, bounded, without tracebacks."""

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from starlette.responses import Response

from looseleaf.core.errors import CapacityError, LooseleafError
from looseleaf.engine.service import EngineService

MAX_MESSAGE_CHARS = 1000

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    error: ErrorDetail


class ApiError(Exception):
    """An answer with an HTTP status other than 200. `param` is the request field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.param = param
        self.code = code

    def body(self) -> ErrorBody:
        message = str(self)
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        if self.status >= 500:
            kind = "server_error"
        elif self.status == 429:
            kind = "rate_limit_error"
        elif self.status == 401:
            kind = "authentication_error"
        else:
            kind = "invalid_request_error"
        return ErrorBody(
            error=ErrorDetail(message=message, type=kind, param=self.param, code=self.code)
        )

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()),
            self.status,
            headers=self.headers,
            media_type="application/json",
        )


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


def invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "this server wants an API key that it knows: send it as `Authorization: Bearer KEY`, or as "
        "`x-api-key: KEY`",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def too_slow(seconds: float) -> ApiError:
    return ApiError(
        408,
        f"the body of the request had not come within {seconds:g} s, which is the limit here",
        headers={"connection": "close"},
    )


def out_of_time(seconds: float) -> ApiError:
    return ApiError(
        504,
        f"the answer was not complete within {seconds:g} s, which is the time it was given: ask "
        f"for fewer tokens, or give it more",
        code="timeout",
    )


def engine_failed() -> ApiError:
    """Why it failed is in the log and nobody else's business."""
    return ApiError(503, "the engine has failed and serves nothing until it is restarted")


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down")


def unavailable(service: EngineService) -> ApiError:
    """What an EngineDeadError of `service` is to a client."""
    return shutting_down() if service.failure is None else engine_failed()


def internal_error() -> ApiError:
    return ApiError(500, "an internal error occurred; the server's log has the details")


def from_looseleaf(error: LooseleafError, prompt_param: str) -> ApiError:
    """What a client is told of a prompt that cannot be used; `prompt_param` is its field."""
    message = str(error)
    if isinstance(error, CapacityError):
        return ApiError(400, message, param=prompt_param, code="context_length_exceeded")
    return invalid(message, prompt_param)


def from_msgspec(error: msgspec.MsgspecError) -> ApiError:
    """msgspec names types and places, never values, so nothing of the input is repeated."""
    message = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"the body is not valid JSON: {message}")
    path = _PATH.search(message)
    missing = _MISSING.search(message)
    message = _PATH.sub("", message).replace("`", "")
    if missing is not None and path is None:
        return invalid(f"{missing[1]} is required, but the body does not have it", missing[1])
    if path is None or not path[1]:
        return invalid(f"the body does not fit: {message}")
    return invalid(f"{path[1]} does not fit: {message}", re.split(r"[.\[]", path[1])[0])
