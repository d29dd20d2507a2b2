"""Packed weights and products with them: every type of file against NumPy, every kernel against
the portable one."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from looseleaf.compiled import compiled
from looseleaf.executors.packed_weights import PACKED_TYPES
from looseleaf.weights.dequantize import dequantize
from looseleaf.weights.ggml_types import TYPES_BY_NAME

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

Floats = NDArray[np.float32]

QUANTIZED = [name for name in PACKED_TYPES if name not in ("F16", "F32")]

F16_PLACES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q8_0": (0,),
}
"""Where each block's f16 numbers are; all other bytes may be anything."""

SHAPES = [(1, 256), (8, 256), (21, 768), (67, 512)]
"""(n, k): tiles that are not full; one, two and three rounds of whatever is done in chunks."""

ROWS = [1, 2, 3, 4, 5, 7, 8, 23, 24, 31, 128, 135]


def available_kernels() -> list[str]:
    return ["portable", "avx2"] if compiled().cpu_features()["avx2"] else ["portable"]


def random_rows(source: str, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of a file, of weights of ordinary size; f16 numbers of every kind, some of them 0."""
    rng = np.random.default_rng(seed)
    if source == "F32":
        return rng.normal(0, 1, (n, k)).astype(np.float32).view(np.uint8)
    if source == "F16":
        return rng.normal(0, 1, (n, k)).astype(np.float16).view(np.uint8)
    layout = TYPES_BY_NAME[source]
    blocks = rng.integers(0, 256, (n * k // layout.block_size, layout.type_size), np.uint8)
    for place in F16_PLACES[source]:
        numbers = rng.normal(0, 0.1, len(blocks)) * rng.choice([0, 1e-6, 1, 1, 1, 30], len(blocks))
        blocks[:, place : place + 2] = numbers.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n, -1)


def packed(source: str, rows: NDArray[np.uint8], n: int, k: int, threads: int = 1) -> Any:
    native = compiled()
    out = np.full(native.packed_bytes(PACKED_TYPES[source], n, k), 0xA5, np.uint8)
    native.pack(source, rows, n, k, out, threads)
    return out


def unpacked(packed_type: str, data: Any, n: int, k: int) -> Floats:
    out = np.empty((n, k), np.float32)
    compiled().unpack(packed_type, n, k, data, out)
    return out


def product(
    packed_type: str, data: Any, n: int, x: Floats, *, quantize: bool, **options: Any
) -> Floats:
    rows, k = x.shape
    out = np.full((rows, n), np.nan, np.float32)
    compiled().matmul(packed_type, n, k, data, x, out, quantize, **options)
    return out


def random_inputs(rows: int, k: int, seed: int = 1) -> Floats:
    x = np.random.default_rng(seed).normal(0, 1, (rows, k)).astype(np.float32)
    x[:, : k // 8] *= 100
    x[rows // 2, 32:64] = 0
    return x


def quantized(x: Floats) -> NDArray[np.float64]:
    """What 8 bits keep of activations, as layout.md says."""
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(groups * inverse).astype(np.float64) * scale).reshape(x.shape)


def test_both_sides_know_the_same_types() -> None:
    for source, packed_type in PACKED_TYPES.items():
        assert compiled().packed_type(source) == packed_type


@pytest.mark.parametrize("source", PACKED_TYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_packed_weights_have_the_decoders_values(source: str, n: int, k: int) -> None:
    rows = random_rows(source, n, k)
    data = packed(source, rows, n, k)
    np.testing.assert_array_equal(
        unpacked(PACKED_TYPES[source], data, n, k), dequantize(rows, source)
    )


@pytest.mark.parametrize("source", PACKED_TYPES)
def test_threads_pack_the_same_bytes(source: str) -> None:
    rows = random_rows(source, 67, 512)
    one = packed(source, rows, 67, 512)
    assert np.array_equal(one, packed(source, rows, 67, 512, threads=3))


@pytest.mark.parametrize("source", QUANTIZED)
@pytest.mark.parametrize("kernels", ["portable", "auto"])
def test_integer_products_come_close_to_float64(source: str, kernels: str) -> None:
    n, k = 67, 512
    data = packed(source, random_rows(source, n, k), n, k)
    weights = unpacked(PACKED_TYPES[source], data, n, k).astype(np.float64)
    x = random_inputs(9, k)
    exact_x = quantized(x)
    ours = product(PACKED_TYPES[source], data, n, x, quantize=True, kernels=kernels)
    # Only rounding in float32 remains. Parts of a weight, scale * integer and minimum, are up to
    # about three times the largest weight of a group, and errors are relative to them.
    size = np.abs(weights).reshape(n, -1, 32).max(axis=2).repeat(32, axis=1)
    tolerance = 3 * 2.0**-23 * np.sqrt(k / 32) * (np.abs(exact_x) @ size.T) + 1e-30
    assert (np.abs(ours - exact_x @ weights.T) <= tolerance).all()


@pytest.mark.parametrize("source", PACKED_TYPES)
@pytest.mark.parametrize("kernels", ["portable", "auto"])
def test_float_products_have_the_bits_of_decoded_weights(source: str, kernels: str) -> None:
    n, k = 67, 512
    rows = random_rows(source, n, k)
    x = random_inputs(9, k)
    decoded = dequantize(rows, source)
    as_floats = packed("F32", decoded.view(np.uint8), n, k)
    expected = product("f32", as_floats, n, x, quantize=False)
    data = packed(source, rows, n, k)
    ours = product(PACKED_TYPES[source], data, n, x, quantize=False, kernels=kernels)
    assert np.array_equal(ours, expected)
    exact = x.astype(np.float64) @ decoded.T.astype(np.float64)
    bound = 2.0**-24 * k * (np.abs(x).astype(np.float64) @ np.abs(decoded.T).astype(np.float64))
    assert (np.abs(ours - exact) <= bound).all()


@pytest.mark.parametrize(
    ("source", "quantize"),
    [(source, False) for source in PACKED_TYPES] + [(source, True) for source in QUANTIZED],
)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_has_the_same_bits_alone_and_on_every_kernel(
    source: str, quantize: bool, n: int, k: int
) -> None:
    packed_type = PACKED_TYPES[source]
    data = packed(source, random_rows(source, n, k), n, k)
    x = random_inputs(max(ROWS), k)
    expected = product(packed_type, data, n, x, quantize=quantize, kernels="portable")
    assert np.isfinite(expected).all()
    for kernels in available_kernels()[1:]:
        for rows in ROWS:
            ours = product(packed_type, data, n, x[:rows], quantize=quantize, kernels=kernels)
            assert np.array_equal(ours, expected[:rows]), (kernels, rows)


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("kernels", ["portable", "auto"])
def test_a_bias_or_a_residual_is_added_as_by_itself(quantize: bool, kernels: str) -> None:
    n, k, rows = 21, 256, 37
    data = packed("Q4_K", random_rows("Q4_K", n, k), n, k)
    x = random_inputs(rows, k)
    options: dict[str, Any] = {"quantize": quantize, "kernels": kernels}
    plain = product("q4k", data, n, x, **options)
    bias, residual = random_inputs(1, n), random_inputs(rows, n)
    assert np.array_equal(product("q4k", data, n, x, addend=bias, **options), plain + bias)
    ours = product("q4k", data, n, x, addend=residual, **options)
    assert np.array_equal(ours, plain + residual)
    compiled().matmul("q4k", n, k, data, x, residual, quantize, residual, kernels)
    assert np.array_equal(residual, ours)


def test_infinite_activations_give_no_number() -> None:
    for source in QUANTIZED:
        data = packed(source, random_rows(source, 8, 256), 8, 256)
        x = random_inputs(2, 256)
        x[0, 5] = np.inf
        ours = product(PACKED_TYPES[source], data, 8, x, quantize=True)
        assert np.isnan(ours[0]).all()
        assert np.isfinite(ours[1]).all()


def test_wrong_sizes_and_names_are_refused() -> None:
    native = compiled()
    rows = random_rows("Q4_0", 8, 256)
    data = packed("Q4_0", rows, 8, 256)
    x = random_inputs(2, 256)
    with pytest.raises(ValueError, match="wrong size"):
        native.pack("Q4_0", rows, 8, 256, data[:-1], 1)
    with pytest.raises(ValueError, match="not n times k"):
        native.pack("Q4_0", rows[:-1], 8, 256, data, 1)
    with pytest.raises(ValueError, match="Q2_K are not packed"):
        native.pack("Q2_K", rows, 8, 256, data, 1)
    with pytest.raises(ValueError, match="no packed weight type"):
        native.packed_bytes("q3", 8, 256)
    with pytest.raises(ValueError, match="impossible shape"):
        native.unpack("q4", 8, 250, data, np.empty((8, 250), np.float32))
    with pytest.raises(ValueError, match="results have the wrong size"):
        native.matmul("q4", 8, 256, data, x, np.empty(15, np.float32), True)
    floats = packed("F32", random_rows("F32", 8, 256), 8, 256)
    with pytest.raises(ValueError, match="take float activations"):
        product("f32", floats, 8, x, quantize=True)


def test_measurements_give_plausible_numbers() -> None:
    native = compiled()
    assert native.peak_int8_madds(1) > 1e8
    assert native.peak_f32_flops(1) > 1e8
    assert 0 < native.bench_matmul("q5", 64, 256, 3, 2, 2) < 1
