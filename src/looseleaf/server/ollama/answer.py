"""Answers of Ollama's API: one JSON object a line, or one in all."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from looseleaf.engine.groups import Delta
from looseleaf.server.errors import ApiError
from looseleaf.server.generation import Generation
from looseleaf.server.ollama.protocol import Answer, ErrorAnswer, Function, Message, ToolCall
from looseleaf.server.parts import Change, Kind, News, Part
from looseleaf.text.messages import json_object

NDJSON = "application/x-ndjson"


def error_response(error: ApiError) -> Response:
    body = msgspec.json.encode(ErrorAnswer(error=error.body().error.message))
    return Response(body, error.status, headers=error.headers, media_type="application/json")


def line(body: Any) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def now() -> str:
    return datetime.now(UTC).isoformat()


class OllamaWriter:
    """`turn_stream.TurnWriter` for one request, of /api/chat or else of /api/generate."""

    content_type = NDJSON

    def __init__(self, generation: Generation, model: str, *, chat: bool) -> None:
        self._generation = generation
        self._model = model
        self._chat = chat
        self._began = time.perf_counter_ns()
        self._parts: list[Part] = []
        self._reason = ""

    def opening(self) -> Iterator[bytes]:
        return iter(())

    def news(self, news: News, delta: Delta) -> Iterator[bytes]:
        """A call is told when it is whole."""
        change, part, text = news
        if change is Change.OPENED:
            self._parts.append(part)
        elif part.kind is Kind.CALL:
            if change is Change.CLOSED:
                yield line(self._answer([part]))
        elif change is Change.GREW:
            yield line(self._answer([Part(part.kind, part.index, text)]))

    def closing(self, finish_reason: str | None, delta: Delta) -> Iterator[bytes]:
        self._reason = "stop" if finish_reason == "tool_calls" else finish_reason or ""
        yield line(self._finished(self._answer([])))

    def failed(self, error: ApiError) -> Iterator[bytes]:
        yield line(ErrorAnswer(error=error.body().error.message))

    def whole(self) -> Answer:
        return self._finished(self._answer(self._parts))

    def _answer(self, parts: list[Part]) -> Answer:
        text = "".join(part.text for part in parts if part.kind is Kind.CONTENT)
        thinking = "".join(p.text for p in parts if p.kind is Kind.REASONING) or UNSET
        answer = Answer(model=self._model, created_at=now())
        if not self._chat:
            answer.response, answer.thinking = text, thinking
            return answer
        calls = [
            # A call that was cut off has arguments that are not JSON (yet): it is given none.
            ToolCall(function=Function(name=part.name, arguments=json_object(part.text) or {}))
            for part in parts
            if part.kind is Kind.CALL
        ]
        answer.message = Message(content=text, thinking=thinking, tool_calls=calls or UNSET)
        return answer

    def _finished(self, answer: Answer) -> Answer:
        usage, timings = self._generation.usage(), self._generation.timings()
        answer.done, answer.done_reason = True, self._reason
        answer.total_duration = time.perf_counter_ns() - self._began
        answer.load_duration = 0
        answer.prompt_eval_count = usage.prompt_tokens
        answer.prompt_eval_duration = int(timings.prompt_ms * 1e6)
        answer.eval_count = usage.completion_tokens
        answer.eval_duration = int(timings.predicted_ms * 1e6)
        return answer
