"""The offline API: a list of prompts in, a list of answers out."""

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from looseleaf.core.errors import LooseleafError
from looseleaf.core.events import EventLog
from looseleaf.core.request import FinishReason
from looseleaf.core.step import TokenLogprobs, Top
from looseleaf.engine.build import Stack, build
from looseleaf.engine.groups import Delta, Group, Router
from looseleaf.engine.params import resolve
from looseleaf.engine.pins import Pin, pins_of
from looseleaf.engine.progress import GenerationProgress
from looseleaf.engine.settings import EngineSettings
from looseleaf.sampling.params import SamplingParams
from looseleaf.text.detokenizer import IncrementalDetokenizer
from looseleaf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from looseleaf.engine.beams import BeamAnswer, BeamSearchParams

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample. `stop_reason` is the stop string or stop token that ended it, if one did."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None
    finish_reason: str
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt. `num_cached_tokens` of the prompt were found stored.

    `prompt_logprobs` and `prompt_top_logprobs` have an entry for each of its tokens, None for the
    first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[float | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int
    prompt_top_logprobs: tuple[Top | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class BeamOutput:
    """`score` is what answers are ranked by: see `BeamSearchParams`."""

    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float
    score: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The answers to one prompt, the best first."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sequences: tuple[BeamOutput, ...]


class LLM:
    """A model with an engine of its own.

    Takes the settings of `EngineSettings` by name: `LLM("smollm2-135m", block_size=32)`. Close it,
    or use it in a `with` statement, to give its memory back. Raises LooseleafError for anything
    that the caller can mend.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        events: EventLog | None = None,
        stack: Stack | None = None,
        **settings: Any,
    ) -> None:
        self.stack = stack or build(EngineSettings(model=model, **settings), events=events)
        self.engine = self.stack.engine
        self._ids = itertools.count()
        self._router = Router()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    def get_tokenizer(self) -> Tokenizer:
        return self.stack.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt, all at once in one batch as far as memory allows.

        A prompt is text, or token ids. One `sampling_params` serves all prompts; a list has one
        for each. Results are in the order of the prompts. `use_tqdm` shows a progress bar if
        standard error is a terminal.
        """
        items = _as_list(prompts)
        token_ids = [self._tokenize(prompt) for prompt in items]
        texts = [prompt if isinstance(prompt, str) else None for prompt in items]
        return self._run(texts, token_ids, sampling_params, use_tqdm, priority, True)

    def pin(self, prompt: Prompt, *, ttl: float | None = None) -> Pin:
        """Compute a beginning that prompts will have, and hold its KV blocks for `ttl` seconds or
        until `unpin`, whatever else needs room. Raises CapacityError where that is more than
        `pin_budget` allows."""
        token_ids = self._tokenize(prompt)
        pins_of(self.engine).check(len(token_ids), ttl)
        self.generate([token_ids], SamplingParams(max_tokens=0), use_tqdm=False)
        return pins_of(self.engine).add(token_ids, self.engine.clock(), ttl=ttl)

    def unpin(self, pin_id: str) -> bool:
        """Let a pinned prefix go; False if it has gone already."""
        return pins_of(self.engine).remove(pin_id)

    def pins(self) -> list[Pin]:
        """The prefixes that are held now."""
        return pins_of(self.engine).list(self.engine.clock())

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: "BeamSearchParams"
    ) -> list[BeamSearchOutput]:
        """The likeliest answers to every prompt, all searched for at once. Results are in the order
        of the prompts; a search whose logits are no numbers has none."""
        from looseleaf.engine.beams import BeamSearch

        items = _as_list(prompts)
        tokenizer = self.stack.tokenizer
        if params.constraints is not None:
            asked = resolve(params.constraints, tokenizer, self.stack.grammars)
            params = replace(params, constraints=asked)
        end = params.end_token_ids(tokenizer.eos_token_ids)
        searches = [
            BeamSearch(
                self.engine,
                f"beams-{next(self._ids)}",
                check_token_ids(self._tokenize(prompt), tokenizer.vocab_size),
                params,
                end,
                tokenizer,
            )
            for prompt in items
        ]
        try:
            for search in searches:
                search.start()
            while not all(search.finished for search in searches):
                updates = self.engine.step()
                for search in searches:
                    search.update(updates)
        finally:
            for search in searches:
                if not search.finished:
                    search.cancel()
        return [
            BeamSearchOutput(
                prompt if isinstance(prompt, str) else None,
                tuple(search.prompt_token_ids),
                tuple(self._beam_output(answer, params.stop) for answer in search.answers),
            )
            for prompt, search in zip(items, searches, strict=True)
        ]

    def _beam_output(self, answer: "BeamAnswer", stop: tuple[str, ...]) -> BeamOutput:
        at_token = answer.finish_reason is FinishReason.STOP and not answer.at_stop
        shown = answer.token_ids[:-1] if at_token else answer.token_ids
        decoder = IncrementalDetokenizer(
            self.stack.tokenizer, stop=stop if answer.at_stop else (), continues_text=True
        )
        return BeamOutput(
            decoder.append(shown) + decoder.finish(),
            answer.token_ids,
            answer.cumulative_logprob,
            answer.score,
            str(answer.finish_reason),
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        conversations: list[Sequence[Message]] = (
            [messages] if messages and isinstance(messages[0], Mapping) else list(messages)  # type: ignore[list-item, arg-type]
        )
        prompts = [
            self.stack.chat_template.render(
                list(conversation),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            for conversation in conversations
        ]
        token_ids = [self.chat_tokens(prompt) for prompt in prompts]
        return self._run(
            prompts, token_ids, sampling_params, use_tqdm, None, continue_final_message
        )

    def chat_tokens(self, prompt: str) -> list[int]:
        """Token ids of a rendered chat template, which spells its special tokens itself."""
        return self.stack.tokenizer.encode_chat(prompt)

    def stream(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        continues_text: bool = True,
    ) -> Generator[tuple[Group, Delta], None, None]:
        """The answer to one prompt piece by piece; closing the iterator aborts it. Several may be
        read in turn. `continues_text` keeps a first space, as a text that goes on needs it."""
        group = self._group(prompt_token_ids, params, 0, continues_text)
        deltas = deque[Delta]()
        with self._started([group], deltas):
            while not group.finished:
                self._step()
                while deltas:
                    yield group, deltas.popleft()

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.stack.tokenizer.encode(prompt, add_special=True, parse_special=True)
        return list(prompt)

    def _group(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        priority: int,
        continues_text: bool,
    ) -> Group:
        return Group(
            f"llm-{next(self._ids)}",
            check_token_ids(token_ids, self.stack.tokenizer.vocab_size),
            resolve(params, self.stack.tokenizer, self.stack.grammars),
            self.stack.tokenizer,
            arrival_time=self.engine.clock(),
            priority=priority,
            continues_text=continues_text,
        )

    def _run(
        self,
        texts: Sequence[str | None],
        prompts: Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None,
        continues_text: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = SamplingParams()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(
                f"{len(sampling_params)} sampling params for {len(prompts)} prompts: give one, or "
                f"one for each prompt"
            )
        groups = [
            self._group(prompt, params, 0 if priority is None else priority[i], continues_text)
            for i, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True))
        ]
        for group in groups:
            # Refused before anything starts, so that one bad prompt does not waste the others.
            self.engine.scheduler.set_limits(group.request)
        deltas = deque[Delta]()
        num_samples = sum(len(group.samples) for group in groups)
        with (
            self._started(groups, deltas),
            GenerationProgress(num_samples, show=use_tqdm) as progress,
        ):
            while not all(group.finished for group in groups):
                self._step()
                while deltas:
                    progress.advance(deltas.popleft())
        return [_output(group, text) for group, text in zip(groups, texts, strict=True)]

    @contextmanager
    def _started(self, groups: Sequence[Group], deltas: deque[Delta]) -> Iterator[None]:
        """Queue `groups`, whose news `_step` appends to `deltas`; abort what is left at the end."""
        try:
            for group in groups:
                self._router.add(group, deltas.append)
                self.engine.add(group.request)
            yield
        finally:
            for group in groups:
                self._router.remove(group)
                for request_id in group.unfinished_ids():
                    self.engine.abort(request_id)

    def _step(self) -> None:
        for request_id, reason in self._router.route(self.engine.step()):
            self.engine.abort(request_id, reason)


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids as a list; raises LooseleafError for one that the model does not have."""
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise LooseleafError(
                f"prompt token {token_id} at position {position} is not in the vocabulary: ids go "
                f"from 0 to {vocab_size - 1}"
            )
    return [int(token_id) for token_id in token_ids]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _output(group: Group, text: str | None) -> RequestOutput:
    return RequestOutput(
        request_id=group.request_id,
        prompt=text,
        prompt_token_ids=tuple(group.prompt_token_ids),
        prompt_logprobs=((None, *group.prompt_logprobs) if group.params.prompt_logprobs else None),
        outputs=tuple(
            CompletionOutput(
                index=sample.index,
                text=sample.text,
                token_ids=tuple(sample.token_ids),
                logprobs=tuple(sample.logprobs) if group.params.logprobs is not None else None,
                finish_reason=str(sample.finish_reason),
                stop_reason=sample.stop_reason,
            )
            for sample in group.samples
        ),
        num_cached_tokens=group.num_cached_tokens,
        prompt_top_logprobs=(
            (None, *group.prompt_top) if group.params.prompt_top_logprobs else None
        ),
    )
