"""Memory for keys and values: of the size asked for, taken from the system only as it is used."""

import math
import mmap
from collections.abc import Iterator, Sequence
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


def give_back(cache: NDArray[np.generic], block_ids: Sequence[int]) -> None:
    """Let the system have the pages that lie in these blocks alone, of what `zeroed` made; they are
    zeros when they are next looked at."""
    memory: Any = cache
    while memory is not None and not isinstance(memory, mmap.mmap):
        memory = memory.obj if isinstance(memory, memoryview) else memory.base
    if memory is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    layer_bytes, block_bytes = cache.strides[0], cache.strides[1]
    for first, count in _runs(sorted(block_ids)):
        for layer in range(len(cache)):
            start = layer * layer_bytes + first * block_bytes
            begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (start + count * block_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
            if length > 0:
                memory.madvise(mmap.MADV_DONTNEED, begin, length)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of each run of numbers that follow each other."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], i - start
            start = i
