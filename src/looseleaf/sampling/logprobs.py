"""Log-probabilities: raw log-softmax of the logits, whatever the temperature and the filters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.step import TokenLogprobs
from looseleaf.sampling.sampler import ranking, usable

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def token_logprobs(
    logits: NDArray[np.float32],
    token_id: int,
    count: int,
    num_valid_tokens: int | None = None,
    edited: NDArray[np.float32] | None = None,
) -> TokenLogprobs:
    """The log-probability of `token_id`, and the `count` most likely ids with theirs.

    Equal ones are listed by rising id; ids from `num_valid_tokens` on do not exist. All finite.
    With `edited`, ids are listed as they rank in that row, and those of minus infinity are not.
    """
    row = usable(logits, num_valid_tokens)
    normalizer = _normalizer(row)
    ranked = row if edited is None else edited
    top = [int(i) for i in ranking(ranked, count)[:count]] if count else []
    if edited is not None:
        top = [i for i in top if ranked[i] != -np.inf]
    return TokenLogprobs(
        _logprob(row, token_id, normalizer),
        tuple((i, _logprob(row, i, normalizer)) for i in top),
    )


def prompt_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int], num_valid_tokens: int | None = None
) -> tuple[float, ...]:
    """The log-probability of `token_ids[i]` under row i of `logits` (len(token_ids), vocab)."""
    result = []
    for row, token_id in zip(logits, token_ids, strict=True):
        valid = usable(row, num_valid_tokens)
        result.append(_logprob(valid, token_id, _normalizer(valid)))
    return tuple(result)


def _normalizer(row: NDArray[np.float32]) -> float:
    """log(sum(exp(row))), in float64."""
    peak = float(row.max())
    return peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))


def _logprob(row: NDArray[np.float32], token_id: int, normalizer: float) -> float:
    if token_id >= len(row):
        return FLOOR
    return max(FLOOR, float(row[token_id]) - normalizer)
