"""POST /v1/chat/completions."""

import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.engine.groups import Delta, Sample
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.details import FiguresWriter, answer_id, prompt_logprobs_of
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import chat_logprobs
from looseleaf.server.protocol import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ToolCall,
    Usage,
)
from looseleaf.server.stream import respond
from looseleaf.server.turns import Replies, Turn, prepare_turn, whole_reply
from looseleaf.text.reply import CallDelta, Said


async def chat_completions(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields, turn, name = await off_loop(work_of(body), _prepare, context, body)
    generation = turn.start(context)
    generation.known_as(name)
    form = ChatFormat(context, fields, turn, generation, name)
    return await respond(request, fields, generation, form)


def _prepare(context: ServerContext, body: bytes) -> tuple[ChatRequest, Turn, str]:
    fields = decode(body, ChatRequest)
    return fields, prepare_turn(context, fields), answer_id("chatcmpl", fields.request_id)


class ChatFormat:
    """`stream.AnswerFormat` for one request."""

    def __init__(
        self,
        context: ServerContext,
        fields: ChatRequest,
        turn: Turn,
        generation: Generation,
        answer_id: str,
    ) -> None:
        self._tokenizer = context.tokenizer
        self._fields = fields
        self._turn = turn
        self._figures = FiguresWriter(context, fields, generation, fields.n)
        self._replies = Replies(turn)
        self._model = fields.model
        self._id = answer_id
        self._created = int(time.time())

    def whole(self, generation: Generation) -> ChatCompletion:
        choices = [self._choice(index, sample) for index, sample in enumerate(generation.samples)]
        figures = self._figures.beside(choices)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=generation.usage(),
            prompt_logprobs=(
                UNSET
                if self._fields.prompt_logprobs is None
                else prompt_logprobs_of(
                    self._tokenizer, generation.groups[0], self._fields.prompt_logprobs
                )
            ),
            prompt_token_ids=self._turn.token_ids if self._fields.return_token_ids else UNSET,
            timings=figures.timings,
            metrics=figures.metrics,
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
            logprobs=self._logprobs(sample),
            finish_reason=reply.finish_reason,
            stop_reason=sample.stop_reason,
            token_ids=self._token_ids(sample.token_ids),
        )

    def _logprobs(self, news: Sample | Delta) -> ChatLogprobs | None:
        if not self._fields.logprobs:
            return None
        as_ids = self._fields.return_tokens_as_token_ids
        return chat_logprobs(self._tokenizer, news.token_ids, news.logprobs, as_ids=as_ids)

    def _token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self._fields.return_token_ids else UNSET

    def chunk(self, choices: list[msgspec.Struct], usage: Usage | UnsetType | None) -> ChatChunk:
        told: list[ChatChunkChoice] = choices  # type: ignore[assignment]
        opens = any(choice.delta.role is not UNSET for choice in told)
        with_prompt = opens and self._fields.return_token_ids
        figures = self._figures.beside(told)
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=told,
            usage=usage,
            prompt_token_ids=self._turn.token_ids if with_prompt else UNSET,
            timings=figures.timings,
            metrics=figures.metrics,
        )

    def opening(self, generation: Generation, index: int) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))

    def piece(self, index: int, delta: Delta) -> ChatChunkChoice | None:
        said = self._replies.feed(index, delta)
        tells_tokens = self._fields.logprobs or self._fields.return_token_ids
        if not (said or (tells_tokens and delta.token_ids)):
            return None
        return ChatChunkChoice(
            index=index,
            delta=_chat_delta(said),
            logprobs=self._logprobs(delta) if delta.token_ids else None,
            token_ids=self._token_ids(delta.token_ids),
        )

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
