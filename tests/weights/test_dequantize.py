"""Every decoder against the `gguf` package's, bit for bit."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from looseleaf.weights.dequantize import DECODERS, dequantize
from looseleaf.weights.errors import GGUFError
from looseleaf.weights.ggml_types import REMOVED_TYPES, TYPES_BY_ID, TYPES_BY_NAME

QUANTIZABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
UNDECODABLE = sorted(set(TYPES_BY_NAME) - set(DECODERS))


def oracle(raw: NDArray[np.uint8], ggml_type: str) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[ggml_type])


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


def random_rows(ggml_type: str, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    width = blocks * TYPES_BY_NAME[ggml_type].type_size
    return np.random.default_rng(seed).integers(0, 256, (rows, width), np.uint8)


def test_the_table_of_types_is_ggmls() -> None:
    ours = {t.id: (t.name, t.block_size, t.type_size) for t in TYPES_BY_ID.values()}
    theirs = {int(t): (t.name, *sizes) for t, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert ours == theirs
    assert not set(REMOVED_TYPES) & set(ours)


@pytest.mark.parametrize("ggml_type", DECODERS)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 4))
def test_random_bytes(ggml_type: str, seed: int, rows: int, blocks: int) -> None:
    raw = random_rows(ggml_type, rows, blocks, seed)
    assert_same_bits(dequantize(raw, ggml_type), oracle(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", DECODERS)
def test_more_blocks_than_one_chunk(ggml_type: str) -> None:
    blocks = 2**20 // (4 * TYPES_BY_NAME[ggml_type].block_size) + 1
    raw = random_rows(ggml_type, 3, blocks, seed=7)
    assert_same_bits(dequantize(raw, ggml_type), oracle(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", QUANTIZABLE)
def test_quantized_weights(ggml_type: str) -> None:
    weights = np.random.default_rng(3).normal(0, 0.05, (24, 512)).astype(np.float32)
    quantized = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[ggml_type])
    decoded = dequantize(quantized.view(np.uint8), ggml_type)
    assert_same_bits(decoded, oracle(quantized.view(np.uint8), ggml_type))
    assert np.abs(decoded - weights).max() < 0.05


@pytest.mark.parametrize("ggml_type", DECODERS)
def test_every_scale_that_is_not_a_number_or_infinite(ggml_type: str) -> None:
    raw = np.full((2, TYPES_BY_NAME[ggml_type].type_size), 0xFF, np.uint8)
    raw[1, 1::2] = 0x7C
    raw[1, 0::2] = 0x00
    assert_same_bits(dequantize(raw, ggml_type), oracle(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", DECODERS)
def test_any_shape_and_any_strides(ggml_type: str) -> None:
    layout = TYPES_BY_NAME[ggml_type]
    raw = random_rows(ggml_type, 24, 2, seed=1)
    flat = dequantize(raw, ggml_type)
    stacked = dequantize(raw.reshape(2, 3, 4, -1), ggml_type)
    assert stacked.shape == (2, 3, 4, 2 * layout.block_size)
    assert_same_bits(stacked.reshape(flat.shape), flat)
    assert_same_bits(dequantize(raw[::-2], ggml_type), np.ascontiguousarray(flat[::-2]))
    assert_same_bits(dequantize(raw[0], ggml_type), flat[0])


def test_the_input_is_left_alone_and_the_output_is_fresh() -> None:
    raw = random_rows("F32", 2, 8, seed=2)
    before = raw.copy()
    decoded = dequantize(raw, "F32")
    decoded[:] = 0
    np.testing.assert_array_equal(raw, before)


@pytest.mark.parametrize("ggml_type", UNDECODABLE)
def test_a_type_without_a_decoder_is_named(ggml_type: str) -> None:
    raw = np.zeros((1, TYPES_BY_NAME[ggml_type].type_size), np.uint8)
    with pytest.raises(GGUFError, match=rf"tensor type {ggml_type} cannot .* Q4_K"):
        dequantize(raw, ggml_type)


def test_a_row_of_broken_blocks() -> None:
    with pytest.raises(GGUFError, match="row of 39 bytes does not hold whole Q4_1 blocks of 20"):
        dequantize(np.zeros((2, 39), np.uint8), "Q4_1")
