"""From rows of logits to the tokens and log-probabilities that a step asks for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.step import TokenLogprobs
from looseleaf.executors.batch import SequenceRange
from looseleaf.sampling.logprobs import prompt_logprobs, token_logprobs
from looseleaf.sampling.sampler import UnusableLogitsError, sample


class Drawn(NamedTuple):
    """The fields of a `StepResult` that come from logits."""

    tokens: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: tuple[tuple[float, ...], ...]


def draw(
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
) -> Drawn:
    """Draw for every sequence from its own rows of `logits` (rows wanted, vocab).

    Where a row is no use, its token is None: only the sequence that it belongs to has to end. Ids
    from `num_valid_tokens` on are never drawn nor listed.
    """
    tokens: list[int | None] = []
    logprobs: list[TokenLogprobs | None] = []
    scores: list[tuple[float, ...]] = []
    for part in ranges:
        if part.sequence.prompt_logprobs:
            scored = part.scored_token_ids
            rows = logits[part.logits_start : part.logits_start + len(scored)]
            scores.append(prompt_logprobs(rows, scored, num_valid_tokens))
        for wanted in part.sequence.samples:
            row = logits[part.logits_stop - 1]
            try:
                token: int | None = sample(
                    row, wanted.params, wanted.sample_index, wanted.position, num_valid_tokens
                )
            except UnusableLogitsError:
                token = None
            tokens.append(token)
            count = wanted.params.logprobs
            logprobs.append(
                None
                if count is None or token is None
                else token_logprobs(row, token, count, num_valid_tokens)
            )
    return Drawn(tuple(tokens), tuple(logprobs), tuple(scores))
