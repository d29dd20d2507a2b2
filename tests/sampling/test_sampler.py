"""Sampling against a slow sampler that ranks everything, and against the wanted distribution."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from looseleaf.core.errors import LooseleafError
from looseleaf.sampling.params import SamplingParams
from looseleaf.sampling.random import uniform
from looseleaf.sampling.sampler import UnusableLogitsError, ranking, sample

Row = NDArray[np.float32]


def row(*values: float) -> Row:
    return np.array(values, np.float32)


def wide_row(seed: int = 0, size: int = 4096) -> Row:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def kept(logits: Row, params: SamplingParams) -> list[tuple[int, float]]:
    """Ranked ids that may be drawn, with probabilities: the documented steps, one by one."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    scaled = logits.astype(np.float64) / params.temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    if 0 < params.top_k < len(ids):
        ids = ids[: params.top_k]
    total = sum(probabilities[i] for i in ids)
    running, cut = 0.0, len(ids)
    if params.top_p < 1:
        for n, i in enumerate(ids, start=1):
            running += probabilities[i] / total
            if running >= params.top_p:
                cut = n
                break
    ids = ids[:cut]
    ids = [i for i in ids if probabilities[i] >= params.min_p * probabilities.max()]
    total = sum(probabilities[i] for i in ids)
    return [(i, probabilities[i] / total) for i in ids]


def slow_sample(logits: Row, params: SamplingParams, position: int) -> int:
    draw, running = uniform(params.seed or 0, 0, position), 0.0
    ranked = kept(logits, params)
    for i, probability in ranked:
        running += probability
        if running > draw:
            return i
    return ranked[-1][0]


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 40},
    {"top_p": 0.9},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 100, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 3.0, "top_p": 0.999},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_equals_the_slow_sampler(filters: dict[str, Any]) -> None:
    params = SamplingParams(seed=11, **filters)
    logits = wide_row()
    for position in range(25):
        assert sample(logits, params, 0, position) == slow_sample(logits, params, position)


@given(
    values=st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=12),
    top_k=st.integers(-1, 14),
    top_p=st.sampled_from([0.1, 0.33, 0.77, 1.0]),
    min_p=st.sampled_from([0.0, 0.35, 1.0]),
    position=st.integers(0, 1000),
)
def test_equals_the_slow_sampler_on_short_rows_with_ties(
    values: list[float], top_k: int, top_p: float, min_p: float, position: int
) -> None:
    params = SamplingParams(seed=3, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row(*values)
    token = sample(logits, params, 0, position)
    if params.greedy:
        assert token == int(np.argmax(logits))
    else:
        assert token == slow_sample(logits, params, position)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_frequencies_follow_the_probabilities(filters: dict[str, Any]) -> None:
    logits = row(2.0, 0.5, 1.0, 1.0, -1.0, -3.0, 0.0, 1.5)
    params = SamplingParams(seed=1234, **filters)
    num_draws = 4000
    counts = np.bincount([sample(logits, params, 0, p) for p in range(num_draws)], minlength=8)
    expected = np.zeros(8)
    for i, probability in kept(logits, params):
        expected[i] = probability * num_draws
    assert not counts[expected == 0].any()
    possible = expected > 0
    chi_square = (((counts - expected)[possible]) ** 2 / expected[possible]).sum()
    assert chi_square < 24.3  # once in a thousand with 7 degrees of freedom


def test_c052_a_seeded_stream_is_the_same_whatever_is_drawn_in_between() -> None:
    logits, params = wide_row(), SamplingParams(seed=42, temperature=0.8)
    alone = [sample(logits, params, 0, p) for p in range(16)]
    neighbour = SamplingParams(seed=7)
    mixed = []
    for p in range(16):
        sample(logits, neighbour, 0, p)
        mixed.append(sample(logits, params, 0, p))
    assert alone == mixed
    assert len(set(alone)) > 1


def test_samples_of_one_prompt_differ() -> None:
    logits, params = wide_row(), SamplingParams(seed=42)
    streams = {tuple(sample(logits, params, i, p) for p in range(8)) for i in range(4)}
    assert len(streams) == 4


def test_c055_ties_go_to_the_lowest_id_in_both_greedy_paths() -> None:
    logits = row(0.0, 3.0, 1.0, 3.0, 3.0)
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=1, top_k=1, seed=9)):
        assert sample(logits, params, 0, 5) == 1


def test_c056_greedy_never_divides_by_the_temperature() -> None:
    logits = row(-1.0, 2.0, 1.0)
    assert sample(logits, SamplingParams(temperature=0), 0, 0) == 1
    assert sample(logits, SamplingParams(temperature=1e-300, seed=1), 0, 0) == 1


def test_c057_greedy_takes_any_top_p_and_top_p_1_is_off() -> None:
    logits = wide_row()
    assert sample(logits, SamplingParams(temperature=0, top_p=0.95), 0, 3) == int(logits.argmax())
    off, absent = SamplingParams(seed=1, top_p=1.0), SamplingParams(seed=1)
    assert [sample(logits, off, 0, p) for p in range(9)] == [
        sample(logits, absent, 0, p) for p in range(9)
    ]


def test_c058_top_p_0_is_the_first_token_only() -> None:
    logits = wide_row()
    for position in range(20):
        token = sample(logits, SamplingParams(seed=1, top_p=0), 0, position)
        assert token == int(logits.argmax())


def test_c059_top_k_0_minus_1_and_more_than_all_are_off() -> None:
    logits = wide_row(size=300)
    streams = [
        [sample(logits, SamplingParams(seed=5, top_k=k, temperature=2), 0, p) for p in range(30)]
        for k in (0, -1, 300, 305)
    ]
    assert all(stream == streams[0] for stream in streams)
    assert len(set(streams[0])) > 10


def test_c059_other_negative_top_k_is_an_error() -> None:
    with pytest.raises(LooseleafError, match="top_k is -2"):
        SamplingParams(top_k=-2)


def test_c078_ids_beyond_the_tokenizer_are_never_drawn() -> None:
    logits = row(0.0, 1.0, 9.0, 9.0)
    assert sample(logits, SamplingParams(temperature=0), 0, 0, num_valid_tokens=2) == 1
    params = SamplingParams(seed=1, temperature=5)
    drawn = {sample(logits, params, 0, p, num_valid_tokens=2) for p in range(50)}
    assert drawn == {0, 1}


def test_top_k_cuts_ties_at_the_border_by_id() -> None:
    logits = row(1.0, 0.0, 1.0, 1.0, 1.0)
    params = SamplingParams(seed=1, top_k=2)
    assert {sample(logits, params, 0, p) for p in range(60)} == {0, 2}


def test_minus_infinity_and_nan_are_never_drawn() -> None:
    logits = row(-np.inf, 0.0, np.nan, 0.5)
    params = SamplingParams(seed=2, temperature=2)
    assert {sample(logits, params, 0, p) for p in range(60)} == {1, 3}
    assert sample(logits, SamplingParams(temperature=0), 0, 0) == 3


@pytest.mark.parametrize("bad", [row(np.nan, np.nan), row(-np.inf, -np.inf), row(0, np.inf)])
def test_c156_a_row_without_a_finite_maximum_is_an_error(bad: Row) -> None:
    with pytest.raises(UnusableLogitsError, match="no finite maximum"):
        sample(bad, SamplingParams(), 0, 0)


def test_the_logits_are_left_as_they_were() -> None:
    logits = wide_row()
    before = logits.copy()
    for params in itertools.chain([SamplingParams(temperature=0)], [SamplingParams(top_p=0.5)]):
        sample(logits, params, 0, 0)
    assert np.array_equal(logits, before)


@given(values=st.lists(st.integers(0, 5), min_size=1, max_size=40), count=st.integers(1, 45))
def test_ranking_is_a_beginning_of_the_full_ranking(values: list[int], count: int) -> None:
    full = sorted(range(len(values)), key=lambda i: (-values[i], i))
    ids = ranking(row(*values), count).tolist()
    assert ids == full[: len(ids)]
    assert len(ids) >= min(count, len(values))
