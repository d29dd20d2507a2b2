"""How a request changes a row of logits before a token is drawn from it.

In this order, in float64, rounded to float32 at the end:

1. `repetition_penalty` r: the logits of all tokens of prompt and output are divided by r where they
   are above 0, and multiplied by it where they are not (Keskar et al., 2019; as Hugging Face does);
2. `frequency_penalty` f and `presence_penalty` p: of a token that was generated c times, f * c + p
   is taken away, once there is one;
3. `logit_bias` is added;
4. what must not be drawn becomes minus infinity: ids that are not among `allowed_token_ids`, and
   those that the request's grammar does not allow next; the last id of a bad word whose other ids
   are the last of prompt and output; end tokens before `min_tokens`.

Log-probabilities are of the logits as the model gave them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.sampling.params import SamplingParams

Ids = NDArray[np.int32]


class RowEdit(NamedTuple):
    """New logits (M,) for `token_ids` (M,), rising; with `only`, all others are minus infinity.
    With `lists`, the most likely tokens are those of the edited row that can be drawn."""

    token_ids: Ids
    logits: NDArray[np.float32]
    only: bool
    lists: bool = False

    def apply(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """`row` (vocab,) edited, as a copy."""
        edited = np.full_like(row, -np.inf) if self.only else row.copy()
        edited[self.token_ids] = self.logits
        return edited


def edit_row(
    row: NDArray[np.float32],
    params: SamplingParams,
    history: Ids,
    num_prompt_tokens: int,
    barred: frozenset[int] = frozenset(),
    grammatical: Ids | None = None,
) -> RowEdit:
    """The edit of `row`, whose ids are all that can be drawn. `history` is prompt and output so
    far, needed only if `params.needs_history`; `barred` are further ids that must not be drawn.
    `grammatical` (M,), rising, are those that a grammar allows, if there is one."""
    penalised = params.presence_penalty != 0 or params.frequency_penalty != 0
    repeated = _ids(history) if params.repetition_penalty != 1 else _ids(())
    generated = _ids(history[num_prompt_tokens:]) if penalised else _ids(())
    biased = _ids([token_id for token_id, _ in params.biases])
    banned = _ids([*_completing(params.bad_words_token_ids, history), *barred])
    only = params.allowed_token_ids is not None or grammatical is not None
    if params.allowed_token_ids is not None:
        token_ids = _ids(list(params.allowed_token_ids))
        if grammatical is not None:
            token_ids = np.intersect1d(token_ids, grammatical, assume_unique=True)
    elif grammatical is not None:
        token_ids = grammatical
    else:
        token_ids = np.unique(np.concatenate([repeated, generated, biased, banned]))
    token_ids = token_ids[token_ids < len(row)]
    logits = row[token_ids].astype(np.float64)
    if len(repeated):
        factor = params.repetition_penalty
        changed = np.where(logits > 0, logits / factor, logits * factor)
        logits = np.where(np.isin(token_ids, repeated), changed, logits)
    if len(generated):
        ids, counts = np.unique(history[num_prompt_tokens:], return_counts=True)
        is_found, places = _places(token_ids, ids)
        penalty = params.frequency_penalty * counts + params.presence_penalty
        logits[places] -= penalty[is_found]
    for token_id, bias in params.biases:
        logits[token_ids == token_id] += bias
    logits[np.isin(token_ids, banned)] = -np.inf
    with np.errstate(over="ignore"):
        return RowEdit(token_ids, logits.astype(np.float32), only, params.lists_drawable)


def _ids(token_ids: "Sequence[int] | Ids") -> Ids:
    return np.unique(np.asarray(token_ids, np.int32))


def _places(token_ids: Ids, wanted: Ids) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Which of `wanted` are among `token_ids`, and where these are. Both rise."""
    places = np.minimum(np.searchsorted(token_ids, wanted), max(0, len(token_ids) - 1))
    is_found = token_ids[places] == wanted if len(token_ids) else np.zeros(len(wanted), np.bool_)
    return is_found, places[is_found]


def _completing(words: Sequence[tuple[int, ...]], history: Ids) -> list[int]:
    """The last id of each word whose other ids stand at the end of `history`."""
    longest = max(map(len, words), default=0)
    end = tuple(history[max(0, len(history) - longest) :].tolist())
    return [
        word[-1]
        for word in words
        if len(word) == 1 or end[max(0, len(end) - len(word) + 1) :] == word[:-1]
    ]
