"""GET /openapi.json: every operation of this server, for whoever makes a client or a test of it."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from looseleaf import __version__
from looseleaf.server import protocol
from looseleaf.server.admin import Aborted, AbortRequest, Cancelled, Load
from looseleaf.server.anthropic import protocol as anthropic
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import ErrorBody
from looseleaf.server.ollama import protocol as ollama
from looseleaf.server.pins import PinCard, PinList, PinRequest
from looseleaf.server.responses.protocol import Deleted, ResponseAnswer, ResponsesRequest
from looseleaf.server.stream import json_response
from looseleaf.server.tokenization import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

_JSON = "application/json"
_PARAMETER = re.compile(r"{(\w+)}")

_ERRORS = {
    400: "The request cannot be served as it is; the message says what to change.",
    401: "The server has API keys, and this request has none of them.",
    404: "The model, or what the path names, does not exist here.",
    405: "The path is that of something else, which does not take this method.",
    408: "The body had not come in time.",
    413: "The body is too large.",
    429: "The server, or what the API key may take, is used up: try again after Retry-After.",
    500: "An internal error.",
    503: "The server is shutting down, or its engine has failed.",
    504: "The answer was not complete within the time that it was given.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`fields` is what the body holds and `answer` what a 200 does, as types: None is no body, and
    `str` plain text. `query` are the parameters after a question mark, as types. `stream` is the
    media type of a streamed answer, `error` the API's own form of an error, and without `guarded`
    no API key is asked for."""

    method: str
    path: str
    summary: str
    fields: Any = None
    query: tuple[tuple[str, type], ...] = ()
    answer: Any = dict[str, Any]
    stream: str | None = None
    error: Any = ErrorBody
    guarded: bool = True

    def statuses(self) -> list[int]:
        """What it may answer besides 200, which follows from what it takes."""
        found = {500, 503}
        if self.guarded:
            found.add(401)
        if self.fields is not None:
            found |= {400, 408, 413}
            if "model" in self.fields.__struct_fields__:
                found.add(404)
        if _PARAMETER.search(self.path):
            found |= {400, 404, 405}
        if self.stream is not None and self.fields is not None:
            found |= {429, 504}
        return sorted(found)

    def types(self) -> list[Any]:
        return [kind for kind in (self.fields, self.answer, self.error) if kind is not None]


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a chat",
        fields=protocol.ChatRequest,
        answer=protocol.ChatCompletion,
        stream=EVENTS,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        summary="Go on from a text",
        fields=protocol.CompletionRequest,
        answer=protocol.Completion,
        stream=EVENTS,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        summary="Make a response, as OpenAI's Responses API does",
        fields=ResponsesRequest,
        answer=ResponseAnswer,
        stream=EVENTS,
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}",
        summary="A response that was stored, or its events",
        query=(("stream", bool), ("starting_after", int)),
        answer=ResponseAnswer,
        stream=EVENTS,
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{response_id}",
        summary="Forget a response",
        answer=Deleted,
    ),
    Operation(
        method="POST",
        path="/v1/responses/{response_id}/cancel",
        summary="End a response that is under way",
        answer=ResponseAnswer,
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        summary="Answer a chat, as Anthropic's Messages API does",
        fields=anthropic.MessagesRequest,
        answer=anthropic.MessageAnswer,
        stream=EVENTS,
        error=anthropic.ErrorAnswer,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        summary="How many tokens a message's prompt has",
        fields=anthropic.CountRequest,
        answer=anthropic.TokenCount,
        error=anthropic.ErrorAnswer,
    ),
    Operation(
        method="POST",
        path="/v1/requests/{request_id}/cancel",
        summary="End an answer that is under way",
        answer=Cancelled,
    ),
    Operation(
        method="POST",
        path="/abort_requests",
        summary="End several answers that are under way",
        fields=AbortRequest,
        answer=Aborted,
    ),
    Operation(
        method="POST",
        path="/api/chat",
        summary="Answer a chat, as Ollama does",
        fields=ollama.ChatRequest,
        answer=ollama.Answer,
        stream=LINES,
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="POST",
        path="/api/generate",
        summary="Answer a prompt, as Ollama does",
        fields=ollama.GenerateRequest,
        answer=ollama.Answer,
        stream=LINES,
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="POST",
        path="/api/show",
        summary="What Ollama tells of a model",
        fields=ollama.ShowRequest,
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="GET",
        path="/api/tags",
        summary="The models, as Ollama lists them",
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="GET",
        path="/api/ps",
        summary="The models that are loaded, as Ollama lists them",
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="GET",
        path="/api/version",
        summary="The version, as Ollama tells it",
        error=ollama.ErrorAnswer,
    ),
    Operation(
        method="POST",
        path="/tokenize",
        summary="The tokens of a prompt or a chat",
        fields=TokenizeRequest,
        answer=Tokenized,
    ),
    Operation(
        method="POST",
        path="/detokenize",
        summary="The text of tokens",
        fields=DetokenizeRequest,
        answer=Detokenized,
    ),
    Operation(method="GET", path="/load", summary="How many answers are under way", answer=Load),
    Operation(
        method="POST",
        path="/reset_prefix_cache",
        summary="Forget the prefixes that nobody holds",
        answer=None,
    ),
    Operation(
        method="POST",
        path="/v1/cache/pins",
        summary="Keep the KV blocks of a prefix",
        fields=PinRequest,
        answer=PinCard,
    ),
    Operation(method="GET", path="/v1/cache/pins", summary="The pinned prefixes", answer=PinList),
    Operation(method="DELETE", path="/v1/cache/pins/{pin_id}", summary="Let go of a pinned prefix"),
    Operation(method="GET", path="/v1/models", summary="The models", answer=protocol.ModelList),
    Operation(
        method="GET", path="/v1/models/{name}", summary="One model", answer=protocol.ModelCard
    ),
    Operation(method="GET", path="/health", summary="Does it serve?", answer=None, guarded=False),
    Operation(method="GET", path="/ping", summary="Does it serve?", answer=None, guarded=False),
    Operation(method="POST", path="/ping", summary="Does it serve?", answer=None, guarded=False),
    Operation(
        method="GET",
        path="/ready",
        summary="Would it take further requests?",
        answer=None,
        guarded=False,
    ),
    Operation(method="GET", path="/version", summary="The version of the server"),
    Operation(method="GET", path="/metrics", summary="Metrics for Prometheus", answer=str),
    Operation(method="GET", path="/openapi.json", summary="This document"),
)


async def openapi(context: ServerContext, request: Request) -> Response:
    return json_response(document())


@cache
def document() -> dict[str, Any]:
    """In OpenAPI 3.1. What a struct's docstring says becomes its schema's description."""
    kinds = {repr(kind): kind for operation in OPERATIONS for kind in operation.types()}
    schemas, components = msgspec.json.schema_components(
        kinds.values(), ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _described(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Looseleaf",
            "version": __version__,
            "description": "In the body of a request, null counts as an omitted field.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _described(operation: Operation, schema_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """An OpenAPI Operation Object. Keys are asked for only where the server has some."""
    error = {"schema": schema_of[repr(operation.error)]}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "security": [{}, {"bearer": []}, {"key": []}] if operation.guarded else [],
        "responses": {"200": {"description": "The answer."}}
        | {
            str(status): {"description": _ERRORS[status], "content": {_JSON: error}}
            if operation.guarded
            else {"description": _ERRORS[status]}
            for status in operation.statuses()
        },
    }
    answer = described["responses"]["200"]
    if operation.answer is None:
        pass
    elif operation.answer is str:
        answer["content"] = {"text/plain": {"schema": schema_of[repr(str)]}}
    else:
        answer["content"] = {_JSON: {"schema": schema_of[repr(operation.answer)]}}
    if operation.stream is not None:
        answer["content"][operation.stream] = {}  # OpenAPI 3.1 has no schema of one event
    if operation.fields is not None:
        body = {_JSON: {"schema": schema_of[repr(operation.fields)]}}
        described["requestBody"] = {"required": True, "content": body}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ] + [
        {"name": name, "in": "query", "schema": msgspec.json.schema(kind)}
        for name, kind in operation.query
    ]
    if parameters:
        described["parameters"] = parameters
    return described
