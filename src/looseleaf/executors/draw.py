"""From rows of logits to the tokens and log-probabilities that a step asks for.

The compiled part draws for all rows of a step in one call, without the GIL; `sampling` says what
is drawn, and draws itself where there is no compiled part. Both give the same tokens.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.compiled import compiled
from looseleaf.core.step import TokenLogprobs
from looseleaf.executors.batch import SequenceRange
from looseleaf.sampling.logprobs import FLOOR, prompt_logprobs, token_logprobs
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
    threads: Any = None,
) -> Drawn:
    """Draw for every sequence from its own rows of `logits` (rows wanted, vocab).

    Where a row is no use, its token is None: only the sequence that it belongs to has to end. Ids
    from `num_valid_tokens` on are never drawn nor listed. `threads` is a `ThreadPool` of the
    compiled part; without one, the calling thread does all.
    """
    native = compiled()
    if native is None:
        return draw_in_python(ranges, logits, num_valid_tokens)
    return draw_natively(native, ranges, logits, num_valid_tokens, threads)


def draw_natively(
    native: ModuleType,
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
    threads: Any,
) -> Drawn:
    """`draw` by the compiled part."""
    columns = logits.shape[1]
    if num_valid_tokens is not None:
        columns = min(columns, num_valid_tokens)
    draws = [
        (
            part.logits_stop - 1,
            params.temperature,
            min(params.top_k, columns),
            params.top_p,
            params.min_p,
            params.seed or 0,
            sample_index,
            position,
            -1 if params.logprobs is None else params.logprobs,
        )
        for part in ranges
        for _, params, sample_index, position in part.sequence.samples
    ]
    scored = [score for part in ranges for score in _scored(part)]
    if not draws and not scored:
        return Drawn((), (), _by_sequence(ranges, iter(())))
    if logits.strides[1] != logits.itemsize:
        logits = np.ascontiguousarray(logits)
    drawn, scores = native.sample(threads, logits, columns, draws, scored)
    return Drawn(
        tuple(None if token < 0 else token for token, _, _ in drawn),
        tuple(
            None if token < 0 or wanted[-1] < 0 else TokenLogprobs(logprob, tuple(top))
            for wanted, (token, logprob, top) in zip(draws, drawn, strict=True)
        ),
        _by_sequence(ranges, iter(scores)),
    )


def draw_in_python(
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
) -> Drawn:
    """`draw` as `sampling` defines it."""
    tokens: list[int | None] = []
    logprobs: list[TokenLogprobs | None] = []
    for part in ranges:
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
    scores = (
        _score(logits[row], token, num_valid_tokens)
        for part in ranges
        for row, token in _scored(part)
    )
    return Drawn(tuple(tokens), tuple(logprobs), _by_sequence(ranges, scores))


def _scored(part: SequenceRange) -> Iterator[tuple[int, int]]:
    """The rows whose log-probabilities were asked for, each with its token."""
    return enumerate(part.scored_token_ids, start=part.logits_start)


def _score(row: NDArray[np.float32], token_id: int, num_valid_tokens: int | None) -> float:
    try:
        return prompt_logprobs(row[None], (token_id,), num_valid_tokens)[0]
    except UnusableLogitsError:
        return FLOOR


def _by_sequence(
    ranges: Sequence[SequenceRange], scores: Iterator[float]
) -> tuple[tuple[float, ...], ...]:
    """Scores in one row, dealt out to the sequences that asked for them."""
    return tuple(
        tuple(next(scores) for _ in part.scored_token_ids)
        for part in ranges
        if part.sequence.prompt_logprobs
    )
