"""Memory for keys and values: of the size asked for, taken from the system only as it is used."""

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ORDINARY_BYTES = 2**21
"""Of each layer, from its first block on, in ordinary pages."""


def store_block(data: bytes, keys: NDArray[Any], values: NDArray[Any]) -> None:
    """Fill a block's `keys` and then its `values` with `data`, which their `tobytes` gave."""
    if len(data) != keys.nbytes + values.nbytes:
        raise ValueError(
            f"a KV block has {keys.nbytes + values.nbytes} bytes, but these are {len(data)}"
        )
    for part, offset in ((keys, 0), (values, keys.nbytes)):
        part[...] = np.frombuffer(data, part.dtype, part.size, offset).reshape(part.shape)


def zeroed(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """Zeros of `shape`, whose first axis is the layers and whose second the blocks.

    Huge pages are read faster, but the first token would pay for zeroing one per layer of which it
    uses a few kilobytes. So they begin where the first blocks, which are handed out first, end.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    layer_bytes = nbytes // shape[0]
    if layer_bytes > ORDINARY_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        for start in range(0, nbytes, layer_bytes):
            first = -(-(start + ORDINARY_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            with suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE, first, max(0, start + layer_bytes - first))
    return np.frombuffer(memory, dtype).reshape(shape)
