"""From a row of logits to a token, by a request's sampling parameters.

Tokens are ranked by falling logit, equal ones by rising id. Everything else is stated on that
ranking, so the outcome is one token whatever the machine:

1. probabilities are softmax(logits / temperature) in float64;
2. `top_k` keeps the first k; 0, -1 and anything from the vocabulary's size on keep all;
3. `top_p` keeps the shortest beginning that holds that share of what step 2 left, at least one
   token; 1 keeps all;
4. `min_p` drops tokens whose probability is below that share of the first token's; 0 keeps all;
5. the token drawn is the first at which the running sum of the kept probabilities, in ranking
   order, exceeds `uniform(seed, sample_index, position)` times their total.

Temperature 0, `top_p` 0 and `top_k` 1 are greedy: the first of the ranking of the raw logits.
"""

import numpy as np
from numpy.typing import NDArray

from looseleaf.sampling.params import SamplingParams
from looseleaf.sampling.random import uniform

_FIRST_CANDIDATES = 256


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    sample_index: int,
    position: int,
    num_valid_tokens: int | None = None,
) -> int:
    """Draw the token at `position`. `logits` (vocab,) is not modified.

    Ids from `num_valid_tokens` on are never drawn, nor are NaN and minus infinity. A seed of None
    is taken as 0. Raises `UnusableLogitsError` if there is no number among the logits.
    """
    row = usable(logits, num_valid_tokens)
    if params.greedy:
        return int(np.argmax(row))
    draw = uniform(params.seed or 0, sample_index, position)
    peak = float(row.max())
    with np.errstate(over="ignore", under="ignore"):  # far below the peak there is nothing
        weights = np.exp((row.astype(np.float64) - peak) / params.temperature)
    ids, total = _candidates(row, weights, params, draw)
    place = int(np.searchsorted(np.cumsum(weights[ids]), draw * total, side="right"))
    num_possible = int(np.count_nonzero(weights[ids]))
    return int(ids[min(place, num_possible - 1)])


class UnusableLogitsError(ArithmeticError):
    """Nothing can be drawn from these logits: their sequence cannot go on."""


def usable(logits: NDArray[np.float32], num_valid_tokens: int | None = None) -> NDArray[np.float32]:
    """The logits of real tokens, with NaN as minus infinity. Raises if no finite one is left."""
    row = logits[:num_valid_tokens]
    if not np.isfinite(row.max()):  # NaN spreads to the maximum
        row = np.where(np.isnan(row), np.float32(-np.inf), row)
        if not np.isfinite(row.max()):
            raise UnusableLogitsError("the model's logits hold no finite maximum")
    return row


def ranking(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The first ids of the ranking: `count` of them, and more only where the last one's equals
    follow; all of them if there are not as many. `row` has no NaN."""
    if count >= len(row):
        ids = np.arange(len(row))
    else:
        border = np.partition(row, len(row) - count)[len(row) - count]
        ids = np.flatnonzero(row >= border)
    return ids[np.argsort(-row[ids], kind="stable")]


def _candidates(
    row: NDArray[np.float32], weights: NDArray[np.float64], params: SamplingParams, draw: float
) -> tuple[NDArray[np.intp], float]:
    """The ids that may be drawn, by rank, and the sum of their weights. If nothing is filtered,
    the ids end where the draw is certain to have been met."""
    if 0 < params.top_k < len(row):
        ids = ranking(row, params.top_k)[: params.top_k]
        if params.top_p < 1:
            running = np.cumsum(weights[ids])
            ids = ids[: _length(running, params.top_p * float(running[-1]))]
    elif params.top_p < 1:
        mass = params.top_p * float(weights.sum())
        ids = _beginning(row, weights, mass)
        ids = ids[: _length(np.cumsum(weights[ids]), mass)]
    elif params.min_p > 0:
        ids = ranking(row, int(np.count_nonzero(weights >= params.min_p)))
    else:
        total = float(weights.sum())
        return _beginning(row, weights, draw * total), total
    # The first token's weight is 1, so the weights are shares of it, and they fall.
    ids = ids[: np.count_nonzero(weights[ids] >= params.min_p)]
    return ids, float(np.cumsum(weights[ids])[-1])


def _beginning(
    row: NDArray[np.float32], weights: NDArray[np.float64], mass: float
) -> NDArray[np.intp]:
    """A beginning of the ranking whose weights add up to more than `mass`, or all of it. The
    whole vocabulary is ranked only if a beginning will not do."""
    count = _FIRST_CANDIDATES
    while True:
        ids = ranking(row, count)
        if len(ids) == len(row) or float(np.cumsum(weights[ids])[-1]) > mass:
            return ids
        count *= 8


def _length(running: NDArray[np.float64], mass: float) -> int:
    """How many of the first tokens it takes to hold `mass`; `running` is their running sum."""
    return min(int(np.searchsorted(running, mass, side="left")) + 1, len(running))
