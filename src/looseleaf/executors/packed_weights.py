"""Weights in the layouts of native/layout.md, as the native executor takes them."""

from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.program.program import RawWeight

PACKED_TYPES = {
    "F32": "f32",
    "F16": "f16",
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q4_K": "q4k",
    "Q5_0": "q5",
    "Q5_1": "q5",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "Q8_0": "q8",
}
"""What each type of a weight file becomes. All are without loss."""

MATRIX_TYPES = tuple(dict.fromkeys(PACKED_TYPES.values()))

FLOAT_TYPES = ("f16", "f32")
"""Of matrices: those that are multiplied with activations in float32 always."""

VECTOR = "vector"
"""The type of what is not a matrix: norm weights and biases, plain float32."""

ALIGNMENT = 64
"""Of the bytes of a weight: kernels are fastest on whole cache lines."""


class PackedForm(NamedTuple):
    """How a weight of `n` outputs by `k` inputs is laid out, and the bytes that takes."""

    type: str
    n: int
    k: int
    nbytes: int


class PackedWeight(NamedTuple):
    """A weight and its `nbytes` of data, which are not to be written to."""

    form: PackedForm
    data: NDArray[np.uint8]


def packed_form(native: ModuleType, source: str, shape: tuple[int, ...]) -> PackedForm:
    """What a weight of type `source`, one of PACKED_TYPES, is packed into."""
    if len(shape) == 1:
        return PackedForm(VECTOR, shape[0], 1, 4 * shape[0])
    n, k = shape
    packed_type = PACKED_TYPES[source]
    return PackedForm(packed_type, n, k, native.packed_bytes(packed_type, n, k))


def pack(native: ModuleType, weight: RawWeight, num_threads: int) -> PackedWeight:
    form = packed_form(native, weight.source, weight.shape)
    rows = np.ascontiguousarray(weight.data)
    if form.type == VECTOR:
        return PackedWeight(form, rows.astype(np.float32).view(np.uint8))
    # NumPy aligns to 16 bytes.
    buffer = np.empty(form.nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    data = buffer[start : start + form.nbytes]
    native.pack(weight.source, rows.view(np.uint8), form.n, form.k, data, num_threads)
    return PackedWeight(form, data)
