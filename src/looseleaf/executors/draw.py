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
from looseleaf.core.step import Sample, StepResult, TokenLogprobs, Top
from looseleaf.executors.batch import SequenceRange
from looseleaf.executors.grammar_states import GrammarStates
from looseleaf.sampling.edits import RowEdit, edit_row
from looseleaf.sampling.logprobs import FLOOR, prompt_logprobs, token_logprobs
from looseleaf.sampling.params import SamplingParams
from looseleaf.sampling.sampler import UnusableLogitsError, sample


class Drawn(NamedTuple):
    """The fields of a `StepResult` that come from logits."""

    tokens: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: tuple[tuple[float, ...], ...]
    prompt_top: tuple[tuple[Top, ...], ...] = ()
    forced: tuple[tuple[int, ...], ...] = ()

    def result(self, step_id: int, durations: tuple[tuple[str, float], ...]) -> StepResult:
        return StepResult(
            step_id,
            self.tokens,
            self.logprobs,
            self.prompt_logprobs,
            durations,
            self.prompt_top,
            self.forced,
        )


def draw(
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
    threads: Any = None,
    grammars: GrammarStates | None = None,
) -> Drawn:
    """Draw for every sequence from its own rows of `logits` (rows wanted, vocab).

    Where a row is no use, its token is None: only the sequence that it belongs to has to end. Ids
    from `num_valid_tokens` on are never drawn nor listed. `threads` is a `ThreadPool` of the
    compiled part; without one, the calling thread does all. `grammars` follows sequences that
    have one.
    """
    native = compiled()
    if native is None:
        drawn = draw_in_python(ranges, logits, num_valid_tokens, grammars)
    else:
        drawn = draw_natively(native, ranges, logits, num_valid_tokens, threads, grammars)
    if grammars is None or not grammars.any_followed:
        return drawn
    return drawn._replace(forced=_forced(ranges, drawn.tokens, grammars))


def draw_natively(
    native: ModuleType,
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
    threads: Any,
    grammars: GrammarStates | None = None,
) -> Drawn:
    """`draw` by the compiled part."""
    columns = logits.shape[1]
    if num_valid_tokens is not None:
        columns = min(columns, num_valid_tokens)
    draws: list[tuple[Any, ...]] = []
    edits: list[tuple[Any, ...]] = []
    for part in ranges:
        for row, wanted in zip(part.draw_rows, part.sequence.samples, strict=True):
            params = _params(wanted)
            edit = _edit(part, wanted, logits[row, :columns], grammars)
            if edit is not None:
                edits.append((len(draws), *edit))
            draws.append(
                (
                    row,
                    params.temperature,
                    min(params.top_k, columns),
                    params.top_p,
                    params.min_p,
                    params.seed or 0,
                    wanted.sample_index,
                    wanted.position,
                    -1 if params.logprobs is None else params.logprobs,
                )
            )
    num_draws = len(draws)
    # Of a greedy draw the most likely tokens come along; the token itself is of no interest.
    asking = [part for part in ranges if part.sequence.prompt_logprobs]
    draws += [
        (row, 0.0, 0, 1.0, 0.0, 0, 0, 0, min(count, columns)) for row, count in _listed(asking)
    ]
    scored = [score for part in asking for score in _scored(part)]
    if not draws and not scored:
        return Drawn((), (), _by_sequence(asking, iter(())))
    if logits.strides[1] != logits.itemsize:
        logits = np.ascontiguousarray(logits)
    drawn, scores = native.sample(threads, logits, columns, draws, scored, edits)
    tops = iter([tuple(top) for _, _, top in drawn[num_draws:]])
    del drawn[num_draws:], draws[num_draws:]
    return Drawn(
        tuple(None if token < 0 else token for token, _, _ in drawn),
        tuple(
            None if token < 0 or asked[-1] < 0 else TokenLogprobs(logprob, tuple(top))
            for asked, (token, logprob, top) in zip(draws, drawn, strict=True)
        ),
        _by_sequence(asking, iter(scores)),
        _tops_by_sequence(asking, tops),
    )


def draw_in_python(
    ranges: Sequence[SequenceRange],
    logits: NDArray[np.float32],
    num_valid_tokens: int | None,
    grammars: GrammarStates | None = None,
) -> Drawn:
    """`draw` as `sampling` defines it."""
    tokens: list[int | None] = []
    logprobs: list[TokenLogprobs | None] = []
    for part in ranges:
        for index, wanted in zip(part.draw_rows, part.sequence.samples, strict=True):
            row = logits[index]
            params = _params(wanted)
            edit = _edit(part, wanted, row[:num_valid_tokens], grammars)
            edited = row if edit is None else edit.apply(row[:num_valid_tokens])
            try:
                token: int | None = sample(
                    edited, params, wanted.sample_index, wanted.position, num_valid_tokens
                )
            except UnusableLogitsError:
                token = None
            tokens.append(token)
            count = params.logprobs
            logprobs.append(
                None
                if count is None or token is None
                else token_logprobs(
                    row,
                    token,
                    count,
                    num_valid_tokens,
                    edited if edit is not None and edit.lists else None,
                )
            )
    scores = (
        _score(logits[row], token, num_valid_tokens)
        for part in ranges
        for row, token in _scored(part)
    )
    tops = (_top(logits[row], count, num_valid_tokens) for row, count in _listed(ranges))
    return Drawn(
        tuple(tokens),
        tuple(logprobs),
        _by_sequence(ranges, scores),
        _tops_by_sequence(ranges, tops),
    )


def _params(wanted: Sample) -> SamplingParams:
    """The core knows less of them, and hands them on."""
    assert isinstance(wanted.params, SamplingParams)
    return wanted.params


def _edit(
    part: SequenceRange,
    wanted: Sample,
    row: NDArray[np.float32],
    grammars: GrammarStates | None,
) -> RowEdit | None:
    """What the request changes of its row before it draws from it."""
    params = _params(wanted)
    if not (params.edits_logits or wanted.barred):
        return None
    told = part.told
    history = np.array(() if told is None else told.token_ids, np.int32)
    num_prompt_tokens = 0 if told is None else told.num_prompt_tokens
    grammatical = None
    if params.grammar is not None:
        assert grammars is not None
        output = history[num_prompt_tokens:].tolist()
        # Further samples begin where the sequence itself does: with its state.
        grammatical = grammars.allowed(part.sequence.request_id, params.grammar, output)
    return edit_row(row, params, history, num_prompt_tokens, wanted.barred, grammatical)


def _forced(
    ranges: Sequence[SequenceRange], tokens: Sequence[int | None], grammars: GrammarStates
) -> tuple[tuple[int, ...], ...]:
    """What the grammars leave no choice about after each of the `tokens` drawn."""
    forced: list[tuple[int, ...]] = []
    token = iter(tokens)
    for part in ranges:
        samples = part.sequence.samples
        for wanted in samples:
            params, drawn = _params(wanted), next(token)
            if drawn is None or wanted.barred or not params.takes_forced_tokens:
                forced.append(())
                continue
            alone = len(samples) == 1
            forced.append(grammars.forced(part.sequence.request_id, drawn, alone=alone))
    return tuple(forced)


def _scored(part: SequenceRange) -> Iterator[tuple[int, int]]:
    """The rows whose log-probabilities were asked for, each with its token."""
    return enumerate(part.scored_token_ids, start=part.logits_start)


def _score(row: NDArray[np.float32], token_id: int, num_valid_tokens: int | None) -> float:
    try:
        return prompt_logprobs(row[None], (token_id,), num_valid_tokens)[0]
    except UnusableLogitsError:
        return FLOOR


def _listed(ranges: Sequence[SequenceRange]) -> Iterator[tuple[int, int]]:
    """The scored rows whose most likely tokens were asked for, each with how many."""
    for part in ranges:
        count = part.sequence.num_prompt_top
        if count:
            yield from ((row, count) for row, _ in _scored(part))


def _top(row: NDArray[np.float32], count: int, num_valid_tokens: int | None) -> Top:
    try:
        return token_logprobs(row, 0, count, num_valid_tokens).top
    except UnusableLogitsError:
        return ()


def _tops_by_sequence(
    ranges: Sequence[SequenceRange], tops: Iterator[Top]
) -> tuple[tuple[Top, ...], ...]:
    return tuple(
        tuple(next(tops) for _ in part.scored_token_ids)
        for part in ranges
        if part.sequence.num_prompt_top
    )


def _by_sequence(
    ranges: Sequence[SequenceRange], scores: Iterator[float]
) -> tuple[tuple[float, ...], ...]:
    """Scores in one row, dealt out to the sequences that asked for them."""
    return tuple(
        tuple(next(scores) for _ in part.scored_token_ids)
        for part in ranges
        if part.sequence.prompt_logprobs
    )
