"""Answers of /v1/responses, whole and as events."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from looseleaf.engine.groups import Delta
from looseleaf.server.errors import ApiError
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import chat_logprobs
from looseleaf.server.parts import Change, Kind, News, Part
from looseleaf.server.protocol import TokenLogprob
from looseleaf.server.responses.protocol import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputPart,
    OutputTokensDetails,
    ResponseAnswer,
    ResponseError,
    ResponsesRequest,
    ResponseUsage,
    TextFormat,
    TextOptions,
)
from looseleaf.server.stream import SSE
from looseleaf.text.tokenizer import Tokenizer

_ITEM_PREFIXES = {Kind.REASONING: "rs", Kind.CONTENT: "msg", Kind.CALL: "fc"}


class ResponseWriter:
    """`turn_stream.TurnWriter` for one request. `keep` is called with the answer at the beginning
    and at the end, and then with what the assistant said, as a message."""

    content_type = SSE

    def __init__(
        self,
        generation: Generation,
        fields: ResponsesRequest,
        tokenizer: Tokenizer,
        keep: Callable[[ResponseAnswer, list[dict[str, Any]]], None],
        *,
        logprobs: bool,
    ) -> None:
        self._generation = generation
        self._fields = fields
        self._tokenizer = tokenizer
        self._keep = keep
        self._wants_logprobs = logprobs
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._items: list[OutputItem] = []
        self._calls: list[dict[str, Any]] = []
        self._text = ""
        self._sequence = 0
        self.answer = _empty_answer(fields)
        keep(self.answer, [])

    def opening(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self.answer)
        yield self._event(f"response.{self.answer.status}", response=self.answer)

    def news(self, news: News, delta: Delta) -> Iterator[bytes]:
        yield from self._begun()
        change, part, text = news
        if change is Change.OPENED:
            self._items.append(_item(part, f"{_ITEM_PREFIXES[part.kind]}_{uuid.uuid4().hex}"))
            yield from self._opened(part)
        elif change is Change.GREW:
            yield from self._grew(part, text, delta)
        else:
            yield from self._closed(part)

    def closing(self, finish_reason: str | None, delta: Delta) -> Iterator[bytes]:
        yield from self._begun()
        answer = self.answer
        answer.output = self._items
        answer.usage = self._usage()
        kind = "response.completed"
        answer.status = "completed"
        if finish_reason == "length":
            kind, answer.status = "response.incomplete", "incomplete"
            answer.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        elif finish_reason == "abort":
            kind, answer.status = "response.incomplete", "cancelled"
        if answer.status != "completed" and self._items:
            self._items[-1].status = "incomplete"
        said: dict[str, Any] = {"role": "assistant", "content": self._text}
        self._keep(answer, [{**said, "tool_calls": self._calls} if self._calls else said])
        yield self._event(kind, response=answer)

    def failed(self, error: ApiError) -> Iterator[bytes]:
        answer = self.answer
        answer.output, answer.status = self._items, "failed"
        answer.error = ResponseError(code="server_error", message=error.body().error.message)
        self._keep(answer, [])
        yield self._event("response.failed", response=answer)

    def _begun(self) -> Iterator[bytes]:
        if self.answer.status == "queued":
            self.answer.status = "in_progress"
            yield self._event("response.in_progress", response=self.answer)

    def whole(self) -> ResponseAnswer:
        return self.answer

    def _opened(self, part: Part) -> Iterator[bytes]:
        item = self._items[part.index]
        added = msgspec.structs.replace(item, status="in_progress")
        if part.kind is not Kind.CALL:
            added.content = []
        yield self._event("response.output_item.added", output_index=part.index, item=added)
        if part.kind is Kind.CONTENT:
            yield self._of_part(part, "response.content_part.added", part=self._part(part))

    def _grew(self, part: Part, text: str, delta: Delta) -> Iterator[bytes]:
        if part.kind is Kind.CALL:
            yield self._of_item(part, "response.function_call_arguments.delta", delta=text)
        elif part.kind is Kind.REASONING:
            yield self._of_part(part, "response.reasoning_text.delta", delta=text)
        else:
            logprobs = []
            if self._wants_logprobs:
                logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs).content
                self._logprobs.setdefault(part.index, []).extend(logprobs)
            yield self._of_part(part, "response.output_text.delta", delta=text, logprobs=logprobs)

    def _closed(self, part: Part) -> Iterator[bytes]:
        item = self._items[part.index]
        if part.kind is Kind.CALL:
            item.arguments = part.text or "{}"
            function = {"name": part.name, "arguments": item.arguments}
            self._calls.append({"id": part.call_id, "type": "function", "function": function})
            yield self._of_item(
                part,
                "response.function_call_arguments.done",
                name=part.name,
                arguments=item.arguments,
            )
        elif part.kind is Kind.REASONING:
            item.content = [OutputPart(type="reasoning_text", text=part.text)]
            yield self._of_part(part, "response.reasoning_text.done", text=part.text)
        else:
            self._text += part.text
            done = self._part(part)
            item.content = [done]
            yield self._of_part(
                part, "response.output_text.done", text=part.text, logprobs=done.logprobs
            )
            yield self._of_part(part, "response.content_part.done", part=done)
        yield self._event("response.output_item.done", output_index=part.index, item=item)

    def _part(self, part: Part) -> OutputPart:
        logprobs = self._logprobs.get(part.index, [])
        return OutputPart(type="output_text", text=part.text, annotations=[], logprobs=logprobs)

    def _of_item(self, part: Part, kind: str, /, **fields: Any) -> bytes:
        item_id = self._items[part.index].id
        return self._event(kind, item_id=item_id, output_index=part.index, **fields)

    def _of_part(self, part: Part, kind: str, /, **fields: Any) -> bytes:
        return self._of_item(part, kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _usage(self) -> ResponseUsage:
        usage = self._generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
        )


def _item(part: Part, item_id: str) -> OutputItem:
    if part.kind is Kind.CALL:
        return OutputItem(
            id=item_id,
            type="function_call",
            status="completed",
            call_id=part.call_id,
            name=part.name,
            arguments="",
        )
    if part.kind is Kind.REASONING:
        return OutputItem(id=item_id, type="reasoning", status="completed", summary=[], content=[])
    return OutputItem(id=item_id, type="message", status="completed", role="assistant", content=[])


def _empty_answer(fields: ResponsesRequest) -> ResponseAnswer:
    given = fields.text.format if fields.text is not None else None
    return ResponseAnswer(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        status="queued" if fields.background else "in_progress",
        background=fields.background,
        model=fields.model,
        output=[],
        instructions=fields.instructions,
        max_output_tokens=fields.max_output_tokens,
        metadata=fields.metadata,
        parallel_tool_calls=fields.parallel_tool_calls,
        previous_response_id=fields.previous_response_id,
        store=fields.store,
        temperature=fields.temperature,
        text=TextOptions(format=given or TextFormat()),
        tool_choice=fields.tool_choice or "auto",
        tools=fields.tools,
        top_logprobs=fields.top_logprobs,
        top_p=fields.top_p,
    )
