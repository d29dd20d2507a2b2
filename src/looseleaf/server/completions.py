"""POST /v1/completions."""

import time
import uuid
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import SamplingParams
from looseleaf.engine.groups import Delta
from looseleaf.server.body import decode, off_loop, read_body
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import CompletionLogprobsWriter, Echo, prompt_logprobs
from looseleaf.server.protocol import (
    MAX_CHOICES,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Usage,
)
from looseleaf.server.stream import respond
from looseleaf.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


class Prepared(NamedTuple):
    """`echoes` are there if they were asked for, one for each prompt."""

    fields: CompletionRequest
    token_ids: list[list[int]]
    params: SamplingParams
    extra_keys: ExtraKeys
    echoes: list[Echo]


async def completions(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    prepared = await off_loop(len(body), prepare, context, body)
    generation = Generation(
        context,
        prepared.token_ids,
        prepared.params,
        priority=prepared.fields.priority,
        extra_keys=prepared.extra_keys,
        continues_text=True,
    )
    form = CompletionFormat(context.tokenizer, prepared)
    return await respond(request, prepared.fields, generation, form)


def prepare(context: ServerContext, body: bytes) -> Prepared:
    """Everything up to the engine. Waits for nothing and may run in any thread."""
    fields = decode(body, CompletionRequest)
    context.check_model(fields.model)
    if fields.echo and fields.logprobs:
        raise invalid(
            "echo with logprobs above 0 is not supported: of the prompt's tokens only their own "
            "log-probabilities are known; set logprobs to 0",
            "logprobs",
        )
    if fields.best_of is not None and fields.best_of != fields.n:
        raise invalid(
            f"best_of is {fields.best_of} with n of {fields.n}, but only equal ones are supported: "
            "leave it out",
            "best_of",
        )
    params = fields.sampling_params(
        max_tokens=DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.echo and fields.logprobs is not None,
    )
    extra_keys = fields.extra_keys()
    prompts = prompts_of(fields.prompt, context.tokenizer.vocab_size)
    if len(prompts) * params.n > MAX_CHOICES:
        raise invalid(
            f"{len(prompts)} prompts with n of {params.n} make {len(prompts) * params.n} answers, "
            f"but one request may ask for at most {MAX_CHOICES}: send several",
            "prompt",
        )
    for prompt in prompts:
        if isinstance(prompt, str):
            context.check_length(prompt, "prompt")
    tokens = [_tokens(context.tokenizer, prompt, fields) for prompt in prompts]
    return Prepared(
        fields,
        [token_ids for token_ids, _ in tokens],
        params,
        extra_keys,
        [echo for _, echo in tokens if echo is not None],
    )


def _tokens(
    tokenizer: Tokenizer, prompt: Prompt, fields: CompletionRequest
) -> tuple[list[int], Echo | None]:
    """A text is echoed as it came; token ids as the text that an answer of them would be."""
    if not isinstance(prompt, str):
        skip_special = fields.skip_special_tokens
        return prompt, Echo.of(tokenizer, prompt, skip_special) if fields.echo else None
    add_special = fields.add_special_tokens is not False
    if not (fields.echo and fields.logprobs is not None):
        token_ids = tokenizer.encode(prompt, add_special=add_special, parse_special=True)
        return token_ids, Echo(prompt, []) if fields.echo else None
    token_ids, offsets = tokenizer.encode_with_offsets(
        prompt, add_special=add_special, parse_special=True
    )
    return token_ids, Echo(prompt, offsets)


def prompts_of(value: Any, vocab_size: int) -> list[Prompt]:
    """The prompts in `value`: a text, a list of texts, token ids, or a list of lists of them.

    Token ids are used as they are. Raises ApiError for anything else.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if all(type(item) is int for item in value):
            return [_checked(value, vocab_size)]
        if all(isinstance(item, list) for item in value):
            return [_checked(item, vocab_size) for item in value]
    raise invalid(
        "prompt must be a text, a list of texts, a list of token ids or a list of such lists, and "
        "none of the lists empty",
        "prompt",
    )


def _checked(token_ids: list[Any], vocab_size: int) -> list[int]:
    if not token_ids:
        raise invalid("prompt has a list without token ids; each needs at least one", "prompt")
    if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in token_ids):
        raise invalid(
            f"prompt has a token id that is not in the vocabulary: they are whole numbers from 0 "
            f"to {vocab_size - 1}",
            "prompt",
        )
    return token_ids


class CompletionFormat:
    """`stream.AnswerFormat` for one request."""

    def __init__(self, tokenizer: Tokenizer, prepared: Prepared) -> None:
        fields = prepared.fields
        self._tokenizer = tokenizer
        self._echoes = prepared.echoes
        self._n = fields.n
        self._echo = fields.echo
        self._logprobs = fields.logprobs is not None
        self._skip_special = fields.skip_special_tokens
        self._model = fields.model
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._writers: dict[int, CompletionLogprobsWriter] = {}

    def whole(self, generation: Generation) -> Completion:
        choices = []
        for index, sample in enumerate(generation.samples):
            text, logprobs = sample.text, None
            if self._logprobs:
                logprobs = self._prompt_logprobs(generation, index) if self._echo else None
                output = self._writer(index).output(sample.token_ids, sample.logprobs)
                logprobs = output if logprobs is None else _joined(logprobs, output)
            if self._echo:
                text = self._prompt_text(index) + text
            choices.append(
                CompletionChoice(
                    index=index,
                    text=text,
                    logprobs=logprobs,
                    finish_reason=sample.finish_reason and sample.finish_reason.value,
                    stop_reason=sample.stop_reason,
                )
            )
        return self.chunk([*choices], generation.usage())

    def chunk(self, choices: list[msgspec.Struct], usage: Usage | UnsetType | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,  # type: ignore[arg-type]
            usage=usage,
        )

    def opening(self, generation: Generation, index: int) -> CompletionChoice | None:
        if not self._echo:
            return None
        logprobs = self._prompt_logprobs(generation, index) if self._logprobs else None
        return CompletionChoice(index=index, text=self._prompt_text(index), logprobs=logprobs)

    def piece(self, index: int, delta: Delta) -> CompletionChoice | None:
        logprobs = None
        if self._logprobs and delta.token_ids:
            logprobs = self._writer(index).output(delta.token_ids, delta.logprobs)
        elif not delta.text:
            return None
        return CompletionChoice(index=index, text=delta.text, logprobs=logprobs)

    def closing(self, index: int, delta: Delta) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text="",
            finish_reason=delta.finish_reason and delta.finish_reason.value,
            stop_reason=delta.stop_reason,
        )

    def _prompt_text(self, index: int) -> str:
        return self._echoes[index // self._n].text

    def _prompt_logprobs(self, generation: Generation, index: int) -> CompletionLogprobs:
        group = generation.groups[index // self._n]
        offsets = self._echoes[index // self._n].offsets
        return prompt_logprobs(
            self._tokenizer, group.prompt_token_ids, group.prompt_logprobs, offsets
        )

    def _writer(self, index: int) -> CompletionLogprobsWriter:
        if index not in self._writers:
            self._writers[index] = CompletionLogprobsWriter(
                self._tokenizer,
                skip_special=self._skip_special,
                offset=len(self._prompt_text(index)) if self._echo else 0,
            )
        return self._writers[index]


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )
