"""POST /v1/chat/completions."""

import time
import uuid
from typing import NamedTuple

import msgspec
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.core.hashing import ExtraKeys
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.groups import Delta
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import chat_logprobs
from looseleaf.server.protocol import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    Usage,
)
from looseleaf.server.stream import respond
from looseleaf.text.tokenizer import Tokenizer


class Prepared(NamedTuple):
    fields: ChatRequest
    token_ids: list[int]
    params: SamplingParams
    extra_keys: ExtraKeys
    beams: BeamSearchParams | None


async def chat_completions(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    prepared = await off_loop(work_of(body), prepare, context, body)
    fields = prepared.fields
    generation = Generation(
        context,
        [prepared.token_ids],
        prepared.params,
        priority=fields.priority,
        extra_keys=prepared.extra_keys,
        continues_text=fields.continue_final_message,
        beams=prepared.beams,
        timeout=fields.timeout,
    )
    return await respond(request, fields, generation, ChatFormat(context.tokenizer, fields))


def prepare(context: ServerContext, body: bytes) -> Prepared:
    """Everything up to the engine. Waits for nothing and may run in any thread."""
    fields = decode(body, ChatRequest)
    context.check_model(fields.model)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    newer = fields.max_completion_tokens is not None
    params = fields.sampling_params(
        context.tokenizer,
        context.grammars,
        max_tokens=fields.max_completion_tokens if newer else fields.max_tokens,
        logprobs=fields.top_logprobs if fields.logprobs else None,
        names={
            "logprobs": "top_logprobs",
            "max_tokens": "max_completion_tokens" if newer else "max_tokens",
        },
    )
    extra_keys = fields.extra_keys()
    if "chat_template" in fields.chat_template_kwargs:
        raise invalid(
            "chat_template is not supported: the template is the model's; a request cannot bring "
            "its own",
            "chat_template_kwargs",
        )
    if fields.continue_final_message and fields.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other: the last message "
            "is either complete or to be continued",
            "continue_final_message",
        )
    prompt = context.chat_template.render(
        fields.messages,
        add_generation_prompt=(
            not fields.continue_final_message
            if fields.add_generation_prompt is None
            else fields.add_generation_prompt
        ),
        continue_final_message=fields.continue_final_message,
        extra=fields.chat_template_kwargs,
    )
    context.check_length(prompt, "messages")
    if fields.add_special_tokens is False:
        token_ids = context.tokenizer.encode(prompt, add_special=False, parse_special=True)
    else:
        token_ids = context.tokenizer.encode_chat(prompt)
    return Prepared(fields, token_ids, params, extra_keys, fields.beam_params(params, fields.n))


class ChatFormat:
    """`stream.AnswerFormat` for one request."""

    def __init__(self, tokenizer: Tokenizer, fields: ChatRequest) -> None:
        self._tokenizer = tokenizer
        self._logprobs = fields.logprobs
        self._model = fields.model
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, generation: Generation) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=sample.text),
                logprobs=(
                    chat_logprobs(self._tokenizer, sample.token_ids, sample.logprobs)
                    if self._logprobs
                    else None
                ),
                finish_reason=sample.finish_reason and sample.finish_reason.value,
                stop_reason=sample.stop_reason,
            )
            for index, sample in enumerate(generation.samples)
        ]
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=generation.usage(),
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
        logprobs = None
        if self._logprobs and delta.token_ids:
            logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs)
        elif not delta.text:
            return None
        return ChatChunkChoice(index=index, delta=ChatDelta(content=delta.text), logprobs=logprobs)

    def closing(self, index: int, delta: Delta) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=index,
            delta=ChatDelta(),
            finish_reason=delta.finish_reason and delta.finish_reason.value,
            stop_reason=delta.stop_reason,
        )
