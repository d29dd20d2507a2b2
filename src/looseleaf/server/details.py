"""What an answer tells besides its text, when asked: token ids, the prompt's log-probabilities in
vLLM's form, times in llama-server's, and figures of the request."""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from looseleaf.engine.groups import Group
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.figures import RequestFigures, Timings
from looseleaf.server.generation import Generation
from looseleaf.server.protocol import (
    ChatChoice,
    ChatChunkChoice,
    CompletionChoice,
    GenerationRequest,
    PromptLogprob,
)
from looseleaf.text.tokenizer import Tokenizer

MAX_ID_CHARS = 128


def answer_id(prefix: str, request_id: str | None) -> str:
    """With the client's own id, if it sent one. It names the answer and nothing else."""
    if request_id is None:
        return f"{prefix}-{uuid.uuid4().hex}"
    if not 1 <= len(request_id) <= MAX_ID_CHARS:
        raise invalid(
            f"request_id has {len(request_id)} characters, but it must have between 1 and "
            f"{MAX_ID_CHARS}",
            "request_id",
        )
    return f"{prefix}-{request_id}"


def prompt_limit(
    context: ServerContext, fields: GenerationRequest, max_tokens: int | None
) -> int | None:
    """How many tokens of the prompt are kept: None is all, and -1 as many as there is room for
    beside `max_tokens` of output. Raises ApiError."""
    asked, most = fields.truncate_prompt_tokens, context.memory.max_model_len
    if asked is None:
        return None
    if asked == -1:
        return max(1, most - (1 if max_tokens is None else max_tokens))
    if not 1 <= asked <= most:
        raise invalid(
            f"truncate_prompt_tokens is {asked}, but it must be between 1 and {most} "
            "(max_model_len), or -1 for what there is room for",
            "truncate_prompt_tokens",
        )
    return asked


def last_text(tokenizer: Tokenizer, text: str, limit: int | None) -> str:
    """An end of `text` that has at least `limit` tokens, if it has so many: what is cut off anyway
    need not be tokenized."""
    if limit is None:
        return text
    return text[-(limit + 1) * tokenizer.longest_token_bytes :]


def last_tokens(token_ids: list[int], limit: int | None, bos_token_id: int | None) -> list[int]:
    """The last `limit`; a BOS token in front stays there and counts."""
    if limit is None or len(token_ids) <= limit:
        return token_ids
    if token_ids[0] != bos_token_id:
        return token_ids[-limit:]
    return token_ids[:1] + token_ids[len(token_ids) - limit + 1 :]


def prompt_logprobs_of(
    tokenizer: Tokenizer, group: Group, num_top: int
) -> list[dict[str, PromptLogprob] | None]:
    """For each token of the prompt its own and the `num_top` likeliest; nothing comes before the
    first, so it has none. The rank of a token that is not among those is not known."""

    def entry(token_id: int, logprob: float, rank: int | None) -> PromptLogprob:
        text = tokenizer.token_bytes(token_id).decode(errors="replace")
        return PromptLogprob(logprob=logprob, rank=rank, decoded_token=text)

    found: list[dict[str, PromptLogprob] | None] = [None]
    tops = group.prompt_top or [()] * len(group.prompt_logprobs)
    for token_id, logprob, top in zip(
        group.prompt_token_ids[1:], group.prompt_logprobs, tops, strict=True
    ):
        likeliest = {
            str(other): entry(other, value, rank + 1)
            for rank, (other, value) in enumerate(top[:num_top])
        }
        found.append({str(token_id): entry(token_id, logprob, None)} | likeliest)
    return found


class Figures(NamedTuple):
    """What an answer tells of its request, as far as that was asked for."""

    timings: Timings | UnsetType
    metrics: RequestFigures | UnsetType


class FiguresWriter:
    """Knows where an answer's figures are told: with all its choices, or in a stream's last
    chunk."""

    def __init__(
        self,
        context: ServerContext,
        fields: GenerationRequest,
        generation: Generation,
        choices: int,
    ) -> None:
        options = fields.stream_options
        self._timings = fields.timings or context.replies.timings
        self._metrics = fields.metrics
        self._usage_is_last = bool(options and options.include_usage)
        self._num_open = choices
        self._generation = generation

    def beside(self, choices: Sequence[ChatChoice | ChatChunkChoice | CompletionChoice]) -> Figures:
        """For the chunk that has `choices`. Must be called once for each."""
        self._num_open -= sum(choice.finish_reason is not None for choice in choices)
        is_last = not choices if self._usage_is_last else not self._num_open
        return Figures(
            self._generation.timings() if self._timings and is_last else UNSET,
            self._generation.figures() if self._metrics and is_last else UNSET,
        )
