"""The sampler of the compiled part: the tokens of the one in Python, whatever the logits."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from looseleaf.compiled import compiled
from looseleaf.sampling.logprobs import FLOOR, prompt_logprobs, token_logprobs
from looseleaf.sampling.params import SamplingParams
from looseleaf.sampling.random import uniform
from looseleaf.sampling.sampler import UnusableLogitsError, sample

native: Any = compiled()
pytestmark = pytest.mark.skipif(native is None, reason="the compiled part is not installed")

Row = NDArray[np.float32]
Drawn = tuple[int, float, list[tuple[int, float]]]


def draw_tuple(
    params: SamplingParams, row: int = 0, sample_index: int = 0, position: int = 0
) -> tuple[Any, ...]:
    return (
        row,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.seed or 0,
        sample_index,
        position,
        -1 if params.logprobs is None else params.logprobs,
    )


def drawn(
    logits: Row, draws: list[tuple[Any, ...]], kernels: str = "auto", threads: int = 1
) -> list[Drawn]:
    rows = np.atleast_2d(logits)
    pool = native.ThreadPool(threads)
    result: list[Drawn] = native.sample(pool, rows, rows.shape[1], draws, [], [], kernels)[0]
    return result


def check(logits: Row, params: SamplingParams, position: int = 0) -> None:
    """One row, natively and in Python."""
    ((token, logprob, top),) = drawn(logits, [draw_tuple(params, position=position)])
    try:
        expected: int | None = sample(logits, params, 0, position)
    except UnusableLogitsError:
        expected = None
    assert (None if token < 0 else token) == expected
    if expected is not None and params.logprobs is not None:
        wanted = token_logprobs(logits, expected, params.logprobs)
        assert [i for i, _ in top] == [i for i, _ in wanted.top]
        ours, theirs = (
            [logprob, *(p for _, p in top)],
            [wanted.logprob, *(p for _, p in wanted.top)],
        )
        assert all(math.isclose(a, b, rel_tol=1e-13) for a, b in zip(ours, theirs, strict=True))


settings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-300, 1e-3, 0.5, 1, 1.0, 1.7, 1e3, 1e300]),
    top_k=st.sampled_from([-1, 0, 0, 1, 2, 5, 40, 300, 10**12]),
    top_p=st.sampled_from([0, 1e-9, 0.3, 0.5, 0.95, 1 - 1e-12, 1, 1.0]),
    min_p=st.sampled_from([0, 0, 1e-9, 0.1, 0.5, 1]),
    seed=st.integers(0, 2**63 - 1) | st.none(),
    logprobs=st.sampled_from([None, None, 0, 1, 20]),
)
values = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-40, 40, width=32),
    st.floats(width=32, allow_infinity=False),
    st.sampled_from([-math.inf, math.nan, -0.0, 0.0, 3e38, -3e38, 1e-45, math.inf]),
)


@given(st.lists(values, min_size=1, max_size=300), settings, st.integers(0, 2**40))
def test_small_rows_of_anything(logits: list[float], params: SamplingParams, position: int) -> None:
    check(np.array(logits, np.float32), params, position)


@given(
    st.integers(1, 20_000),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0]),
    st.sampled_from([None, 1.0, 0.25]),
    st.sampled_from(["any order", "rising", "falling"]),
    st.sampled_from([None, -np.inf, np.nan]),
    settings,
)
def test_long_rows(
    size: int,
    seed: int,
    spread: float,
    grid: float | None,
    order: str,
    hole: float | None,
    params: SamplingParams,
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(size) * spread
    if grid is not None:  # many are equal
        logits = np.round(logits / grid) * grid
    if order != "any order":
        logits = np.sort(logits)[:: 1 if order == "rising" else -1]
    row = logits.astype(np.float32)
    if hole is not None:
        row[rng.random(size) < 0.3] = hole
    check(row, params, seed)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 127, 128, 129, 1023, 1024, 40_001])
@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_all_kernels_give_the_same_bits(size: int, spread: float) -> None:
    logits = (np.random.default_rng(size).standard_normal((3, size)) * spread).astype(np.float32)
    logits[1, ::3] = np.nan
    draws = [
        draw_tuple(SamplingParams(temperature=t, top_p=p, seed=4, logprobs=20), row, 0, position)
        for position, (t, p) in enumerate([(1.0, 1.0), (0.7, 0.9), (3.0, 0.99)])
        for row in range(3)
    ]
    assert (
        drawn(logits, draws) == drawn(logits, draws, "portable") == drawn(logits, draws, threads=3)
    )


def test_a_draw_far_down_a_flat_row_finds_its_place() -> None:
    logits = np.random.default_rng(3).permutation(np.linspace(0, 1e-3, 30_000)).astype(np.float32)
    for position in range(40):
        check(logits, SamplingParams(seed=1), position)
        check(logits, SamplingParams(seed=1, top_p=0.7, logprobs=3), position)


def test_rows_may_lie_apart_and_be_wider_than_the_vocabulary() -> None:
    logits = np.full((6, 90), 1e9, np.float32)
    logits[::2, :50] = np.random.default_rng(0).standard_normal((3, 50))
    draws = [draw_tuple(SamplingParams(seed=1), row, 0, row) for row in range(3)]
    result, scores = native.sample(native.ThreadPool(2), logits[::2], 50, draws, [(2, 7), (0, 60)])
    for row, (token, _, _) in enumerate(result):
        assert token == sample(logits[2 * row, :50], SamplingParams(seed=1), 0, row)
    assert math.isclose(scores[0], prompt_logprobs(logits[4:5, :50], (7,))[0], rel_tol=1e-13)
    assert scores[1] == FLOOR


def test_what_cannot_be_is_refused() -> None:
    pool, logits = native.ThreadPool(1), np.zeros((2, 4), np.float32)
    draw = draw_tuple(SamplingParams())
    for columns in (0, 5):
        with pytest.raises(ValueError, match="columns"):
            native.sample(pool, logits, columns, [draw], [])
    with pytest.raises(ValueError, match="next to each other"):
        native.sample(pool, logits.T, 2, [draw], [])
    with pytest.raises(ValueError, match="cannot run kernels none"):
        native.sample(pool, logits, 4, [draw], [], [], "none")
    for scores in ([(2, 0)], [(-1, 0)], [(0, -1)]):
        with pytest.raises(IndexError):
            native.sample(pool, logits, 4, [], scores)
    with pytest.raises(IndexError):
        native.sample(pool, logits, 4, [draw_tuple(SamplingParams(), 2)], [])
    ids, values = np.array([0, 4], np.int32), np.zeros(2, np.float32)
    for edit in (
        (0, ids, values, False, False),
        (1, ids[:1], values[:1], False, False),
        (0, ids, values[:1], True, False),
    ):
        with pytest.raises(IndexError, match="edit of"):
            native.sample(pool, logits, 4, [draw], [], [edit])
    assert native.sample(pool, logits, 4, [], []) == ([], [])


@given(st.integers(0, 2**63 - 1), st.integers(0, 127), st.integers(0, 2**64 - 1))
def test_the_random_number_is_the_same(seed: int, sample_index: int, position: int) -> None:
    assert native.uniform(seed, sample_index, position) == uniform(seed, sample_index, position)
