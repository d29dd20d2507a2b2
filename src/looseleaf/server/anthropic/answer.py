"""Answers of the Messages API, whole and as events."""

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.responses import Response

from looseleaf.engine.groups import Delta
from looseleaf.server.anthropic.protocol import (
    Block,
    ErrorAnswer,
    ErrorDetail,
    MessageAnswer,
    Usage,
)
from looseleaf.server.errors import ApiError
from looseleaf.server.generation import Generation
from looseleaf.server.parts import Change, Kind, News, Part
from looseleaf.server.stream import SSE
from looseleaf.text.messages import json_object

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> ErrorAnswer:
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.status, other)
    return ErrorAnswer(error=ErrorDetail(type=kind, message=error.body().error.message))


def error_response(error: ApiError) -> Response:
    body = msgspec.json.encode(error_body(error))
    return Response(body, error.status, headers=error.headers, media_type="application/json")


class MessageWriter:
    """`turn_stream.TurnWriter` for one request. A cancelled answer's stop reason is `abort`."""

    content_type = SSE

    def __init__(self, generation: Generation, model: str) -> None:
        self._generation = generation
        self._model = model
        self.answer_id = f"msg_{uuid.uuid4().hex}"
        self._parts: list[Part] = []
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def opening(self) -> Iterator[bytes]:
        usage = Usage(
            input_tokens=self._generation.usage().prompt_tokens,
            output_tokens=0,
        )
        yield _event("message_start", message=self._answer([], usage))
        yield _event("ping")

    def news(self, news: News, delta: Delta) -> Iterator[bytes]:
        change, part, text = news
        if change is Change.OPENED:
            self._parts.append(part)
            block = _block(part, "" if part.kind is Kind.CALL else part.text)
            yield _event("content_block_start", index=part.index, content_block=block)
        elif change is Change.GREW:
            kind, name = {
                Kind.REASONING: ("thinking_delta", "thinking"),
                Kind.CONTENT: ("text_delta", "text"),
                Kind.CALL: ("input_json_delta", "partial_json"),
            }[part.kind]
            yield _event("content_block_delta", index=part.index, delta={"type": kind, name: text})
        else:
            yield _event("content_block_stop", index=part.index)

    def closing(self, finish_reason: str | None, delta: Delta) -> Iterator[bytes]:
        self._stop_reason = _STOP_REASONS.get(finish_reason or "", finish_reason)
        if finish_reason == "stop" and isinstance(delta.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", delta.stop_reason
        told = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        yield _event("message_delta", delta=told, usage=self._usage())
        yield _event("message_stop")

    def failed(self, error: ApiError) -> Iterator[bytes]:
        yield _event("error", error=error_body(error).error)

    def whole(self) -> MessageAnswer:
        return self._answer([_block(part, part.text) for part in self._parts], self._usage())

    def _answer(self, content: list[Block], usage: Usage) -> MessageAnswer:
        return MessageAnswer(
            id=self.answer_id,
            model=self._model,
            content=content,
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=usage,
        )

    def _usage(self) -> Usage:
        usage = self._generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return Usage(
            input_tokens=usage.prompt_tokens - cached,
            output_tokens=usage.completion_tokens,
            cache_read_input_tokens=cached,
        )


def _block(part: Part, text: str) -> Block:
    if part.kind is Kind.CONTENT:
        return Block(type="text", text=text)
    if part.kind is Kind.REASONING:
        return Block(type="thinking", thinking=text, signature="")
    # A call that was cut off has arguments that are not JSON (yet): it is given none.
    arguments = json_object(text) or {}
    return Block(type="tool_use", id=part.call_id, name=part.name, input=arguments)


def _event(kind: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
