"""Perplexity of a text, by the convention of llama.cpp's `perplexity` tool.

The text is cut into windows of `context` tokens; what is left over at its end is dropped. Where the
tokenizer begins texts with BOS, so does the text, and BOS takes the place of each window's first
token. In each window the first half only serves as context: positions `context // 2` to
`context - 2` predict the token that follows them. Perplexity is exp of the mean negative
log-likelihood of those tokens.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from looseleaf.bench.progress import Advance
from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError, LooseleafError
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.engine.build import build
from looseleaf.engine.settings import EngineSettings
from looseleaf.executors.batch import Batch
from looseleaf.sampling.logprobs import prompt_logprobs
from looseleaf.sampling.sampler import UnusableLogitsError
from looseleaf.text.tokenizer import Tokenizer

CHUNK = 128
"""Tokens of a step: their logits are held at once."""

MIN_CONTEXT = 8

Window = list[int]


class LogitsExecutor(Protocol):
    """What an executor must have besides `execute` to be looked at more closely."""

    def logits(self, step: Step) -> tuple[NDArray[np.float32], Batch]:
        """Do all of a step but the sampling; the rows (S, vocab) are valid until the next call."""


class Scores(NamedTuple):
    """Of every scored token: its negative log-likelihood, in nats, and the id that was the most
    likely in its place."""

    nll: NDArray[np.float64]
    most_likely: NDArray[np.int64]

    @property
    def mean_nll(self) -> float:
        return float(self.nll.mean())

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean_nll)

    @property
    def standard_error(self) -> float:
        """Of the perplexity: its derivative by the mean times the standard error of the mean."""
        return self.perplexity * float(self.nll.std()) / math.sqrt(len(self.nll) - 1)

    def agreement(self, other: "Scores") -> float:
        """The share of scored tokens in whose place both have the same most likely id."""
        return float((self.most_likely == other.most_likely).mean())


def cut_windows(tokenizer: Tokenizer, text: str, *, context: int, max_tokens: int) -> list[Window]:
    """Windows of the first `max_tokens` tokens of `text`. Raises LooseleafError for a text of less
    than one window, and ConfigError for a window too small to score anything in."""
    if context < MIN_CONTEXT:
        raise ConfigError(f"the context is {context}, but it must be at least {MIN_CONTEXT} tokens")
    if max_tokens < context:
        raise ConfigError(
            f"max_tokens is {max_tokens}, but one window takes {context}: raise it, or lower the "
            f"context"
        )
    bos = tokenizer.bos_token_id if tokenizer.add_bos else None
    token_ids = tokenizer.encode(text, add_special=False, parse_special=False)
    if bos is not None:
        token_ids.insert(0, bos)
    if len(token_ids) < context:
        raise LooseleafError(
            f"the text has {len(token_ids)} tokens, but one window takes {context}: give a longer "
            f"text, or lower the context"
        )
    end = min(len(token_ids), max_tokens)
    windows = [token_ids[i : i + context] for i in range(0, end - context + 1, context)]
    if bos is not None:
        for window in windows:
            window[0] = bos
    return windows


def evaluate(settings: EngineSettings, windows: Sequence[Window], advance: Advance) -> Scores:
    """Load the model of `settings` and score windows of equal length on its executor."""
    stack = build(
        replace(
            settings,
            max_num_seqs=1,
            max_num_batched_tokens=CHUNK,
            max_model_len=len(windows[0]),
        )
    )
    try:
        return score(
            cast(LogitsExecutor, stack.engine.executor),
            windows,
            block_size=stack.memory.block_size,
            num_valid_tokens=stack.model_config.tokenizer_size,
            advance=advance,
        )
    finally:
        stack.engine.close()


def score(
    executor: LogitsExecutor,
    windows: Sequence[Window],
    *,
    block_size: int,
    num_valid_tokens: int,
    advance: Advance,
) -> Scores:
    """Score windows on an executor that has a KV cache for one of them and takes steps of `CHUNK`
    tokens. Ids from `num_valid_tokens` on do not exist."""
    nll: list[float] = []
    most_likely: list[int] = []
    for step in _steps(windows, block_size):
        (sequence,) = step.sequences
        logits, batch = executor.logits(step)
        if sequence.prompt_logprobs:
            scored = batch.ranges[0].scored_token_ids
            try:
                nll.extend(-x for x in prompt_logprobs(logits, scored, num_valid_tokens))
            except UnusableLogitsError as error:
                raise LooseleafError(f"{error}: the model's file is damaged") from None
            most_likely.extend(logits[:, :num_valid_tokens].argmax(axis=1).tolist())
            if sequence.first_position + len(sequence.token_ids) == len(windows[0]) - 1:
                advance()
    return Scores(np.array(nll), np.array(most_likely))


def summary(scores: Scores) -> dict[str, Any]:
    return {
        "perplexity": scores.perplexity,
        "standard_error": scores.standard_error,
        "mean_nll": scores.mean_nll,
    }


def comparison(scores: Scores, other: Scores) -> dict[str, Any]:
    """The other's figures. `ratio` is the first perplexity over the other, `same_most_likely` a
    fraction of 1."""
    return {
        **summary(other),
        "ratio": scores.perplexity / other.perplexity,
        "same_most_likely": scores.agreement(other),
    }


def _steps(windows: Sequence[Window], block_size: int) -> Iterator[Step]:
    """Each window is a sequence of its own; all use the same blocks, one after the other."""
    finished: tuple[RequestId, ...] = ()
    step_id = 0
    for index, window in enumerate(windows):
        request_id = RequestId(f"window-{index}")
        blocks = tuple(map(BlockId, range(blocks_for(len(window), block_size))))
        for start, end, scored in _chunks(len(window)):
            step_id += 1
            sequence = ScheduledSequence(
                request_id,
                tuple(window[start:end]),
                start,
                0,
                blocks if start == 0 else (),
                samples=(),
                prompt_logprobs=scored,
                next_token_id=window[end] if scored else None,
            )
            yield Step(step_id, (sequence,), finished=finished)
            finished = ()
        finished = (request_id,)


def _chunks(context: int) -> Iterator[tuple[int, int, bool]]:
    """(start, end, whether scored) of all steps of a window: its last token is never computed."""
    half, last = context // 2, context - 1
    for begin, stop, scored in ((0, half, False), (half, last, True)):
        for start in range(begin, stop, CHUNK):
            yield start, min(start + CHUNK, stop), scored
