"""Keys and values of all blocks, for executors that compute with NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class KVCache:
    """Per layer and slot the keys and values of one token: float32, (kv_heads, head_dim) each.

    Slot = block_id * block_size + offset. The system hands out the memory on the first write to
    it, so a large cache costs only what is used. `nbytes` counts it all.
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        self._keys: Floats = np.zeros(shape, np.float32)
        self._values: Floats = np.zeros(shape, np.float32)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def write(self, layer: int, slots: Ints, keys: Floats, values: Floats) -> None:
        """Store rows (n, kv_heads * head_dim) in `slots` (n,), which are all different."""
        shape = (-1, *self._keys.shape[2:])
        self._keys[layer, slots] = keys.reshape(shape)
        self._values[layer, slots] = values.reshape(shape)

    def read(self, layer: int, slots: Ints) -> tuple[Floats, Floats]:
        """Fresh copies (n, kv_heads, head_dim) of the keys and the values in `slots`."""
        return self._keys[layer, slots], self._values[layer, slots]

    def block(self, block_id: int) -> tuple[Floats, Floats]:
        """The keys and the values of a block themselves, (layers, block_size, kv_heads, head_dim)
        each."""
        slots = slice(block_id * self.block_size, (block_id + 1) * self.block_size)
        return self._keys[:, slots], self._values[:, slots]

    def copy(self, source: int, destination: int) -> None:
        """Copy the whole of a block, in every layer."""
        for there, here in zip(self.block(destination), self.block(source), strict=True):
            there[...] = here

    def close(self) -> None:
        """Give the memory back; may be called again."""
        self._keys = self._values = np.zeros((0, 0, 0, 0), np.float32)
