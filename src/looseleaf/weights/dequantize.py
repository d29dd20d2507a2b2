"""Stored blocks to float32, one function per ggml type.

Every decoder takes `(num_blocks, type_size)` uint8 and returns `(num_blocks, block_size)` float32.
The order of the operations is part of the contract: results equal ggml's reference decoder bit
for bit (NaN payloads aside). Layouts: `ggml-common.h` and `ggml-quants.c` in ggml.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from looseleaf.weights.errors import GGUFError
from looseleaf.weights.ggml_types import TYPES_BY_NAME

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_BYTES = 1 << 20  # keeps the temporaries of one pass inside the CPU's cache


def dequantize(raw: Blocks, ggml_type: str) -> Floats:
    """Decode rows of stored bytes `(..., bytes per row)` into `(..., elements per row)`.

    The result is a fresh array; `raw` is not modified. Raises `GGUFError` for a type without a
    decoder and for rows that do not hold whole blocks.
    """
    decode = DECODERS.get(ggml_type)
    if decode is None:
        raise GGUFError(
            f"tensor type {ggml_type} cannot be decoded; supported are {', '.join(DECODERS)}: "
            "use a file quantized to one of these"
        )
    layout = TYPES_BY_NAME[ggml_type]
    blocks_per_row, rest = divmod(raw.shape[-1], layout.type_size)
    if rest:
        raise GGUFError(
            f"a row of {raw.shape[-1]} bytes does not hold whole {ggml_type} blocks "
            f"of {layout.type_size} bytes"
        )
    blocks = np.ascontiguousarray(raw).reshape(-1, layout.type_size)
    out = np.empty((len(blocks), layout.block_size), np.float32)
    step = max(1, _CHUNK_BYTES // (4 * layout.block_size))
    with np.errstate(all="ignore"):  # damaged scales may be NaN or infinite: not ours to report
        for start in range(0, len(blocks), step):
            out[start : start + step] = decode(blocks[start : start + step])
    return out.reshape(*raw.shape[:-1], blocks_per_row * layout.block_size)


def _f32(blocks: Blocks) -> Floats:
    return blocks.view("<f4")


def _f16(blocks: Blocks) -> Floats:
    return _half(blocks, 0)


def _bf16(blocks: Blocks) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Blocks) -> Floats:
    return _half(blocks, 0) * _centred(_nibbles(blocks[:, 2:]), 8)


def _q4_1(blocks: Blocks) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Blocks) -> Floats:
    q = _joined(_nibbles(blocks[:, 6:]), _bits(blocks[:, 2:6]))
    return _half(blocks, 0) * _centred(q, 16)


def _q5_1(blocks: Blocks) -> Floats:
    q = _joined(_nibbles(blocks[:, 8:]), _bits(blocks[:, 4:8]))
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(blocks: Blocks) -> Floats:
    return _scaled_k(blocks, _nibbles_of_pairs(blocks[:, 16:]))


def _q5_k(blocks: Blocks) -> Floats:
    high = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little")
    return _scaled_k(blocks, _joined(_nibbles_of_pairs(blocks[:, 48:]), high))


def _q6_k(blocks: Blocks) -> Floats:
    n = len(blocks)
    low = _shifted(blocks[:, :128].reshape(n, 2, 1, 64), (0, 4), 0x0F).reshape(n, 16, 16)
    high = _shifted(blocks[:, 128:192].reshape(n, 2, 1, 32), (0, 2, 4, 6), 0x03).reshape(n, 16, 16)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[:, :, None] * _centred(_joined(low, high), 32)).reshape(n, 256)


def _half(blocks: Blocks, at: int) -> Floats:
    """The float16 stored at byte `at` of each block, as a column."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: Blocks) -> Blocks:
    """All low nibbles, then all high ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _bits(packed: Blocks) -> Blocks:
    return np.unpackbits(packed, axis=1, bitorder="little")


def _joined(low: Blocks, high: Blocks) -> Blocks:
    """Four low bits and the bits above them."""
    return low | (high << np.uint8(4))


def _centred(q: Blocks, zero: int) -> Floats:
    return (q.view(np.int8) - np.int8(zero)).astype(np.float32)


def _shifted(packed: Blocks, shifts: tuple[int, ...], mask: int) -> Blocks:
    """Fields of each byte along axis 2, the least significant first."""
    by = np.array(shifts, np.uint8)[:, None]
    return (packed >> by) & np.uint8(mask)


def _nibbles_of_pairs(packed: Blocks) -> Blocks:
    """`(n, 128)` bytes to `(n, 8, 32)`: 32 bytes hold one sub-block low and the next one high."""
    n = len(packed)
    return _shifted(packed.reshape(n, 4, 1, 32), (0, 4), 0x0F).reshape(n, 8, 32)


def _scaled_k(blocks: Blocks, q: Blocks) -> Floats:
    """`d * scale * q - dmin * minimum` for the 8 sub-blocks of Q4_K and Q5_K.

    Bytes 4-15 pack 8 scales and 8 minima of 6 bits: four whole scales, four whole minima, then the
    low nibbles of the other eight, whose top bits sit above the first eight.
    """
    packed = blocks[:, 4:16]
    first, second, nibbles = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 0x3F, nibbles & 0x0F | first >> 2 & 0x30], axis=1)
    minima = np.concatenate([second & 0x3F, nibbles >> 4 | second >> 2 & 0x30], axis=1)
    scale = (_half(blocks, 0) * scales.astype(np.float32))[:, :, None]
    minimum = (_half(blocks, 2) * minima.astype(np.float32))[:, :, None]
    return (scale * q.astype(np.float32) - minimum).reshape(len(blocks), 256)


DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
