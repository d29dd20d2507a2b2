"""POST /v1/chat/completions."""

import time
import uuid

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.engine.groups import Delta, Sample
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import chat_logprobs
from looseleaf.server.protocol import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ToolCall,
    Usage,
)
from looseleaf.server.stream import respond
from looseleaf.server.turns import Replies, Turn, prepare_turn, whole_reply
from looseleaf.text.reply import CallDelta, Said
from looseleaf.text.tokenizer import Tokenizer


async def chat_completions(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields, turn = await off_loop(work_of(body), _prepare, context, body)
    generation = turn.start(context)
    return await respond(request, fields, generation, ChatFormat(context.tokenizer, fields, turn))


def _prepare(context: ServerContext, body: bytes) -> tuple[ChatRequest, Turn]:
    fields = decode(body, ChatRequest)
    return fields, prepare_turn(context, fields)


class ChatFormat:
    """`stream.AnswerFormat` for one request."""

    def __init__(self, tokenizer: Tokenizer, fields: ChatRequest, turn: Turn) -> None:
        self._tokenizer = tokenizer
        self._turn = turn
        self._replies = Replies(turn)
        self._logprobs = fields.logprobs
        self._model = fields.model
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, generation: Generation) -> ChatCompletion:
        choices = [self._choice(index, sample) for index, sample in enumerate(generation.samples)]
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=generation.usage(),
        )

    def _choice(self, index: int, sample: Sample) -> ChatChoice:
        reply = whole_reply(self._turn, sample)
        reasoning = reply.reasoning or UNSET
        calls = [
            ToolCall(
                id=call.call_id,
                type="function",
                function=CalledFunction(name=call.name, arguments=call.arguments),
            )
            for call in reply.calls
        ]
        return ChatChoice(
            index=index,
            message=ChatMessage(
                content=reply.content or (None if calls else ""),
                reasoning=reasoning,
                reasoning_content=reasoning,
                tool_calls=calls or UNSET,
            ),
            logprobs=(
                chat_logprobs(self._tokenizer, sample.token_ids, sample.logprobs)
                if self._logprobs
                else None
            ),
            finish_reason=reply.finish_reason,
            stop_reason=sample.stop_reason,
        )

    def chunk(self, choices: list[msgspec.Struct], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,  # type: ignore[arg-type]
            usage=usage,
        )

    def opening(self, generation: Generation, index: int) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))

    def piece(self, index: int, delta: Delta) -> ChatChunkChoice | None:
        said = self._replies.feed(index, delta)
        logprobs = None
        if self._logprobs and delta.token_ids:
            logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs)
        elif not said:
            return None
        return ChatChunkChoice(index=index, delta=_chat_delta(said), logprobs=logprobs)

    def closing(self, index: int, delta: Delta) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=index,
            delta=ChatDelta(),
            finish_reason=self._replies.finish_reason(index, delta.finish_reason),
            stop_reason=delta.stop_reason,
        )


def _chat_delta(said: Said) -> ChatDelta:
    reasoning = said.reasoning or UNSET
    return ChatDelta(
        content=said.content or (UNSET if said else ""),
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=[_piece_of_call(delta) for delta in said.calls] or UNSET,
    )


def _piece_of_call(delta: CallDelta) -> ToolCall:
    begins = delta.call_id is not None
    return ToolCall(
        index=delta.index,
        id=delta.call_id or UNSET,
        type="function" if begins else UNSET,
        function=CalledFunction(name=delta.name or UNSET, arguments=delta.arguments),
    )
