"""POST /v1/completions."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.groups import Delta, Sample
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.details import (
    FiguresWriter,
    answer_id,
    last_text,
    last_tokens,
    prompt_limit,
    prompt_logprobs_of,
)
from looseleaf.server.errors import invalid
from looseleaf.server.generation import Generation
from looseleaf.server.logprobs import CompletionLogprobsWriter, Echo, prompt_logprobs
from looseleaf.server.protocol import (
    MAX_CHOICES,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptLogprob,
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
    beams: BeamSearchParams | None
    answer_id: str


async def completions(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    prepared = await off_loop(work_of(body), prepare, context, body)
    generation = Generation(
        context,
        prepared.token_ids,
        prepared.params,
        priority=prepared.fields.priority,
        extra_keys=prepared.extra_keys,
        continues_text=True,
        beams=prepared.beams,
        timeout=prepared.fields.timeout,
    )
    generation.known_as(prepared.answer_id)
    form = CompletionFormat(context, prepared, generation)
    return await respond(request, prepared.fields, generation, form)


def prepare(context: ServerContext, body: bytes) -> Prepared:
    """Everything up to the engine. Waits for nothing and may run in any thread."""
    fields = decode(body, CompletionRequest)
    context.check_model(fields.model)
    best_of = fields.n if fields.best_of is None else fields.best_of
    if best_of < fields.n:
        raise invalid(
            f"best_of is {best_of}, but it must be at least n, which is {fields.n}", "best_of"
        )
    if best_of > fields.n and fields.stream:
        raise invalid(
            "best_of above n cannot be streamed: which answers are best is known at the end",
            "best_of",
        )
    params = fields.sampling_params(
        context.tokenizer,
        context.grammars,
        max_tokens=DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=_most(fields.prompt_logprobs, fields.logprobs if fields.echo else None),
    )
    beams = fields.beam_params(params, best_of)
    if best_of > fields.n:
        params = replace(params, n=best_of) if beams else _best_of(params, best_of)
    extra_keys = fields.extra_keys()
    prompts = prompts_of(fields.prompt, context.tokenizer.vocab_size)
    if len(prompts) * params.n > MAX_CHOICES:
        raise invalid(
            f"{len(prompts)} prompts with n of {params.n} make {len(prompts) * params.n} answers, "
            f"but one request may ask for at most {MAX_CHOICES}: send several",
            "prompt",
        )
    limit = prompt_limit(context, fields, params.max_tokens)
    for prompt in prompts:
        if isinstance(prompt, str) and limit is None:
            context.check_length(prompt, "prompt")
    tokens = [_tokens(context.tokenizer, prompt, fields, limit) for prompt in prompts]
    return Prepared(
        fields,
        [token_ids for token_ids, _ in tokens],
        params,
        extra_keys,
        [echo for _, echo in tokens if echo is not None],
        beams,
        answer_id("cmpl", fields.request_id),
    )


def _most(first: int | None, second: int | None) -> int | None:
    return max((n for n in (first, second) if n is not None), default=None)


def _best_of(params: SamplingParams, count: int) -> SamplingParams:
    """With as many samples, and what it takes to say which are best."""
    logprobs = 0 if params.logprobs is None else params.logprobs
    try:
        return replace(params, n=count, logprobs=logprobs)
    except LooseleafError as error:
        raise invalid(str(error).replace("n is", "best_of is", 1), "best_of") from None


def _tokens(
    tokenizer: Tokenizer, prompt: Prompt, fields: CompletionRequest, limit: int | None
) -> tuple[list[int], Echo | None]:
    """A text is echoed as it came; token ids as the text that an answer of them would be, and so is
    what is left of a prompt that was cut to `limit` tokens."""
    if limit is not None:
        if isinstance(prompt, str):
            prompt = tokenizer.encode(
                last_text(tokenizer, prompt, limit),
                add_special=fields.add_special_tokens is not False,
                parse_special=True,
            )
        prompt = last_tokens(prompt, limit, tokenizer.bos_token_id)
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


def best_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Those whose tokens are the likeliest on average, the best first; all, as they came, if no
    more were made than wanted."""
    if len(samples) <= count:
        return list(samples)

    def mean_logprob(sample: Sample) -> float:
        found = [entry.logprob for entry in sample.logprobs if entry is not None]
        return sum(found) / len(found) if found else -math.inf

    return sorted(samples, key=lambda sample: (-mean_logprob(sample), sample.index))[:count]


class CompletionFormat:
    """`stream.AnswerFormat` for one request."""

    def __init__(self, context: ServerContext, prepared: Prepared, generation: Generation) -> None:
        fields = prepared.fields
        self._tokenizer = context.tokenizer
        self._fields = fields
        self._generation = generation
        self._figures = FiguresWriter(
            context, fields, generation, len(prepared.token_ids) * fields.n
        )
        self._told_prompt: set[int] = set()
        self._echoes = prepared.echoes
        self._n = fields.n
        self._echo = fields.echo
        self._logprobs = fields.logprobs is not None
        self._skip_special = fields.skip_special_tokens
        self._model = fields.model
        self._id = prepared.answer_id
        self._created = int(time.time())
        self._writers: dict[int, CompletionLogprobsWriter] = {}

    def whole(self, generation: Generation) -> Completion:
        choices = []
        best = [s for group in generation.groups for s in best_samples(group.samples, self._n)]
        for index, sample in enumerate(best):
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
                    prompt_logprobs=self._prompt_logprobs_of(index),
                    prompt_token_ids=self._prompt_token_ids(index),
                    token_ids=self._token_ids(sample.token_ids),
                )
            )
        return self.chunk([*choices], generation.usage())

    def chunk(self, choices: list[msgspec.Struct], usage: Usage | UnsetType | None) -> Completion:
        told: list[CompletionChoice] = choices  # type: ignore[assignment]
        figures = self._figures.beside(told)
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=told,
            usage=usage,
            timings=figures.timings,
            metrics=figures.metrics,
        )

    def _prompt_token_ids(self, index: int) -> list[int] | UnsetType:
        """With the first that is told of a choice."""
        if not self._fields.return_token_ids or index in self._told_prompt:
            return UNSET
        self._told_prompt.add(index)
        return self._generation.groups[index // self._n].prompt_token_ids

    def _token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self._fields.return_token_ids else UNSET

    def _prompt_logprobs_of(self, index: int) -> list[dict[str, PromptLogprob] | None] | UnsetType:
        num_top = self._fields.prompt_logprobs
        if num_top is None:
            return UNSET
        group = self._generation.groups[index // self._n]
        return prompt_logprobs_of(self._tokenizer, group, num_top)

    def opening(self, generation: Generation, index: int) -> CompletionChoice | None:
        if not self._echo:
            return None
        logprobs = self._prompt_logprobs(generation, index) if self._logprobs else None
        return CompletionChoice(
            index=index,
            text=self._prompt_text(index),
            logprobs=logprobs,
            prompt_token_ids=self._prompt_token_ids(index),
            token_ids=self._token_ids([]),
        )

    def piece(self, index: int, delta: Delta) -> CompletionChoice | None:
        logprobs = None
        if self._logprobs and delta.token_ids:
            logprobs = self._writer(index).output(delta.token_ids, delta.logprobs)
        elif not (delta.text or (self._fields.return_token_ids and delta.token_ids)):
            return None
        return CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=logprobs,
            prompt_token_ids=self._prompt_token_ids(index),
            token_ids=self._token_ids(delta.token_ids),
        )

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
            self._tokenizer,
            group.prompt_token_ids,
            group.prompt_logprobs,
            [top[: self._fields.logprobs] for top in group.prompt_top],
            offsets,
            as_ids=self._fields.return_tokens_as_token_ids,
        )

    def _writer(self, index: int) -> CompletionLogprobsWriter:
        if index not in self._writers:
            self._writers[index] = CompletionLogprobsWriter(
                self._tokenizer,
                skip_special=self._skip_special,
                offset=len(self._prompt_text(index)) if self._echo else 0,
                as_ids=self._fields.return_tokens_as_token_ids,
            )
        return self._writers[index]


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )
