"""The converter's row permutation is undone exactly (C-114)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from looseleaf.weights.errors import GGUFError
from looseleaf.weights.gguf_llama import undo_rope_permutation

Doubles = NDArray[np.float64]


def permute_as_the_converter(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    half = weight.shape[0] // num_heads // 2
    heads = weight.reshape(num_heads, 2, half, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def rotated(a: Doubles, b: Doubles, angle: Doubles) -> tuple[Doubles, Doubles]:
    return a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)


def rotate_half_split(x: Doubles, angle: Doubles) -> Doubles:
    half = len(x) // 2
    return np.concatenate(rotated(x[:half], x[half:], angle))


def rotate_neighbours(x: Doubles, angle: Doubles) -> Doubles:
    return np.stack(rotated(x[0::2], x[1::2], angle), axis=1).ravel()


@given(num_heads=st.integers(1, 9), half=st.integers(1, 16), columns=st.integers(1, 5))
def test_it_inverts_the_converter(num_heads: int, half: int, columns: int) -> None:
    rows = num_heads * 2 * half
    weight = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    stored = permute_as_the_converter(weight, num_heads)
    np.testing.assert_array_equal(undo_rope_permutation(stored, num_heads), weight)


def test_grouped_queries_use_the_number_of_kv_heads() -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(9 * 64, 32)).astype(np.float32)
    k = rng.normal(size=(3 * 64, 32)).astype(np.float32)
    stored_q, stored_k = permute_as_the_converter(q, 9), permute_as_the_converter(k, 3)
    np.testing.assert_array_equal(undo_rope_permutation(stored_q, 9), q)
    np.testing.assert_array_equal(undo_rope_permutation(stored_k, 3), k)
    assert not np.array_equal(undo_rope_permutation(stored_k, 1), k)


def test_scores_agree_between_the_two_forms_of_rope() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=24)
    stored_q, stored_k = rng.normal(size=(2, 16, 24))
    q, k = undo_rope_permutation(stored_q, 1), undo_rope_permutation(stored_k, 1)
    angle = rng.normal(size=8)
    stored_score = rotate_neighbours(stored_q @ x, 5 * angle) @ rotate_neighbours(
        stored_k @ x, angle
    )
    score = rotate_half_split(q @ x, 5 * angle) @ rotate_half_split(k @ x, angle)
    np.testing.assert_allclose(score, stored_score, rtol=1e-12)


def test_biases_and_stored_bytes_keep_shape_and_type() -> None:
    bias = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(
        undo_rope_permutation(bias, 2), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    )
    stored = np.arange(12 * 20, dtype=np.uint8).reshape(12, 20)
    undone = undo_rope_permutation(stored, 2)
    assert undone.dtype == np.uint8
    np.testing.assert_array_equal(undone[:, 0], stored[[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11], 0])


def test_the_input_is_left_alone() -> None:
    weight = np.arange(8, dtype=np.float32)
    undo_rope_permutation(weight, 4)[:] = -1
    np.testing.assert_array_equal(weight, np.arange(8))


@pytest.mark.parametrize("num_heads", [0, -2, 5, 12])
def test_heads_that_do_not_fit(num_heads: int) -> None:
    with pytest.raises(GGUFError, match=f"12 rows do not divide into {num_heads} heads"):
        undo_rope_permutation(np.zeros((12, 4), np.float32), num_heads)
