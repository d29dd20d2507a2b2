"""A step's draws: by the compiled part and in Python, on rows that belong to several sequences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from looseleaf.compiled import compiled
from looseleaf.core.step import History, Step
from looseleaf.executors import draw as module
from looseleaf.executors.batch import SequenceRange, make_batch
from looseleaf.executors.draw import Drawn, draw, draw_in_python, draw_natively
from looseleaf.executors.rows import Rows
from looseleaf.sampling.logprobs import FLOOR
from looseleaf.sampling.params import SamplingParams

VOCAB = 500
native = compiled()
needs_native = pytest.mark.skipif(native is None, reason="the compiled part is not installed")


@pytest.fixture
def ranges(scheduled: Any) -> tuple[SequenceRange, ...]:
    """Rows: a owns 0 to 2 and draws twice from 2, b none, c owns 3, d owns 4 and 5."""
    warm = SamplingParams(temperature=1.2, top_p=0.9, seed=3, logprobs=4)
    step = Step(
        1,
        (
            scheduled(
                "a",
                [1, 2, 3],
                block_ids=[0],
                params=warm,
                sample_indices=(0, 1),
                prompt_logprobs=True,
            ),
            scheduled("b", [4], block_ids=[1], params=None),
            scheduled("c", [5, 6], 2, block_ids=[2], params=SamplingParams(seed=2, top_k=10)),
            scheduled(
                "d", [7, 8], block_ids=[3], params=None, prompt_logprobs=True, next_token_id=9
            ),
        ),
    )
    rows = Rows(num_blocks=8, block_size=8)
    rows.update(step)
    return make_batch(step, rows, 100).ranges


def logits_for(ranges: tuple[SequenceRange, ...]) -> np.ndarray:
    count = max(part.logits_stop for part in ranges)
    rng = np.random.default_rng(0)
    return (rng.standard_normal((count, VOCAB)) * 3).astype(np.float32)


def assert_same(ours: Drawn, theirs: Drawn) -> None:
    assert ours.tokens == theirs.tokens
    for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.logprob == pytest.approx(other.logprob, rel=1e-12)
            assert [i for i, _ in one.top] == [i for i, _ in other.top]
    assert list(map(len, ours.prompt_logprobs)) == list(map(len, theirs.prompt_logprobs))
    for mine, yours in zip(ours.prompt_logprobs, theirs.prompt_logprobs, strict=True):
        assert mine == pytest.approx(yours, rel=1e-12)


@needs_native
@pytest.mark.parametrize("num_valid_tokens", [None, 300, VOCAB + 10])
def test_both_ways_give_the_same(
    ranges: tuple[SequenceRange, ...], num_valid_tokens: int | None
) -> None:
    logits = logits_for(ranges)
    expected = draw_in_python(ranges, logits, num_valid_tokens)
    assert len(expected.tokens) == 3
    assert list(map(len, expected.prompt_logprobs)) == [2, 2]
    for threads in (1, 3):
        pool = native.ThreadPool(threads)  # type: ignore[union-attr]
        assert_same(draw_natively(native, ranges, logits, num_valid_tokens, pool), expected)
    # As BLAS may leave them, and without a pool.
    assert_same(draw(ranges, np.asfortranarray(logits), num_valid_tokens), expected)


def test_c156_a_row_that_is_no_use_ends_its_own_sequence(
    ranges: tuple[SequenceRange, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = logits_for(ranges)
    whole = draw(ranges, logits, None)
    logits[2] = np.nan  # draws of a
    logits[5] = np.inf  # a score of d
    for part in (compiled(), None):
        monkeypatch.setattr(module, "compiled", lambda part=part: part)
        result = draw(ranges, logits, None)
        assert result.tokens == (None, None, whole.tokens[2])
        assert result.logprobs == (None, None, None)
        assert result.prompt_logprobs[0] == pytest.approx(whole.prompt_logprobs[0])
        assert FLOOR in result.prompt_logprobs[1]


def test_nothing_wanted_is_nothing_drawn(scheduled: Any) -> None:
    assert draw((), np.zeros((0, VOCAB), np.float32), None) == Drawn((), (), ())
    step = Step(1, (scheduled("a", [1], block_ids=[0], params=None, prompt_logprobs=True),))
    rows = Rows(num_blocks=1, block_size=4)
    rows.update(step)
    parts = make_batch(step, rows, 100).ranges
    assert draw(parts, np.zeros((0, VOCAB), np.float32), None) == Drawn((), (), ((),))


@needs_native
@pytest.mark.parametrize("num_valid_tokens", [None, 300])
def test_both_ways_edit_rows_alike(scheduled: Any, num_valid_tokens: int | None) -> None:
    penalised = SamplingParams(
        seed=5,
        repetition_penalty=1.4,
        presence_penalty=0.5,
        logit_bias={7: 3.0, 400: 50.0},
        bad_words_token_ids=((3,), (2, 9)),
        logprobs=3,
    )
    allowed = SamplingParams(temperature=0, allowed_token_ids=frozenset({8, 9, 250, 499}))
    step = Step(
        1,
        (
            scheduled("a", [1, 2], 2, block_ids=[0], params=penalised)._replace(
                history=History((1, 3), 3)
            ),
            scheduled("b", [4], block_ids=[1], params=allowed),
            scheduled("c", [5, 6], block_ids=[2], params=SamplingParams(seed=2)),
        ),
    )
    rows = Rows(num_blocks=8, block_size=8)
    rows.update(step)
    ranges = make_batch(step, rows, 100).ranges
    assert list(ranges[0].told.token_ids) == [1, 3, 1, 2]
    logits = logits_for(ranges)
    kept = logits.copy()
    expected = draw_in_python(ranges, logits, num_valid_tokens)
    assert expected.tokens[1] in (8, 9, 250, 499)
    assert_same(draw_natively(native, ranges, logits, num_valid_tokens, None), expected)
    np.testing.assert_array_equal(logits, kept)
    listing = [
        part.sequence.samples[0]._replace(
            params=replace(part.sequence.samples[0].params, lists_drawable=True, logprobs=5)
        )
        for part in ranges
    ]
    listed = tuple(
        part._replace(sequence=part.sequence._replace(samples=(one,)))
        for part, one in zip(ranges, listing, strict=True)
    )
    expected = draw_in_python(listed, logits, num_valid_tokens)
    assert_same(draw_natively(native, listed, logits, num_valid_tokens, None), expected)
    assert expected.logprobs[1] is not None
    drawable = {token for token, _ in expected.logprobs[1].top}
    assert drawable <= {8, 9, 250, 499}
    barred = [part.sequence.samples[0]._replace(barred=frozenset({8, 9, 250})) for part in ranges]
    held = [
        part._replace(sequence=part.sequence._replace(samples=(sample,)))
        for part, sample in zip(ranges, barred, strict=True)
    ]
    if num_valid_tokens is None:
        assert draw(held, logits, None).tokens[1] == 499
    else:
        assert draw(held, logits, num_valid_tokens).tokens[1] is None  # nothing is left
