"""How much of the KV cache a request takes, layer by layer."""

from collections import Counter
from typing import NamedTuple

from looseleaf.core.block_tables import blocks_for
from looseleaf.planner.shapes import ModelShape


class _Group(NamedTuple):
    """Layers that are alike, and the bytes of one block of all of them."""

    block_bytes: int
    max_blocks: int | None


class KVSizing:
    """Blocks of `block_size` tokens of one model, on each device.

    With `free_windows`, layers with a window keep the blocks alone that the next query may see;
    without, all positions, which is what an engine with one block table for all layers does.
    """

    def __init__(
        self,
        shape: ModelShape,
        dtype: str,
        block_size: int,
        tensor_parallel_size: int = 1,
        *,
        free_windows: bool = True,
    ) -> None:
        self.block_size = block_size
        self.bytes_per_token = shape.kv_bytes_per_token(dtype, tensor_parallel_size)
        self.block_bytes = round(self.bytes_per_token * block_size)
        sizes: Counter[int | None] = Counter()
        for layer in shape.kv_layers:
            window = layer.window if free_windows else None
            bytes_per_token = layer.bytes_per_token(dtype, tensor_parallel_size)
            sizes[window] += round(bytes_per_token * block_size)
        self._groups = [
            _Group(block_bytes, None if window is None else self.window_blocks(window))
            for window, block_bytes in sizes.items()
        ]

    def window_blocks(self, window: int) -> int:
        """That `window` consecutive positions can touch, wherever they begin."""
        return (window + self.block_size - 2) // self.block_size + 1

    def request_bytes(self, num_stored: int, num_shared_blocks: int = 0) -> int:
        """Of one request with so many tokens stored, besides blocks that it shares with others."""
        num_blocks = blocks_for(num_stored, self.block_size)
        return sum(
            group.block_bytes * (num_blocks - num_shared_blocks)
            if group.max_blocks is None
            else group.block_bytes * min(num_blocks, group.max_blocks)
            for group in self._groups
        )

    def shared_bytes(self, num_blocks: int) -> int:
        """Of blocks at the beginning that all requests share: of layers without a window, as
        the others leave them behind."""
        return num_blocks * sum(g.block_bytes for g in self._groups if g.max_blocks is None)

    def mean_request_bytes(
        self, num_prompt_tokens: int, num_output_tokens: int, num_shared_blocks: int = 0
    ) -> float:
        """Averaged over the steps of a request that generates one token in each: it has its
        prompt stored in the first, all but its last token in the last."""
        first, last = num_prompt_tokens, num_prompt_tokens + num_output_tokens - 1
        total = 0.0
        for group in self._groups:
            sum_of_blocks = self._sum_of_blocks(last, group.max_blocks) - self._sum_of_blocks(
                first - 1, group.max_blocks
            )
            shared = num_shared_blocks if group.max_blocks is None else 0
            total += group.block_bytes * (sum_of_blocks / num_output_tokens - shared)
        return total

    def _sum_of_blocks(self, last: int, most: int | None) -> int:
        """Of sequences with 1, 2, ... `last` tokens, each with at most so many blocks."""
        size = self.block_size
        if most is not None and last > most * size:
            return self._sum_of_blocks(most * size, None) + (last - most * size) * most
        whole, rest = divmod(last, size)
        return size * whole * (whole + 1) // 2 + rest * (whole + 1)

    def longest(self, num_bytes: int) -> int:
        """How many tokens one request may store in so many bytes, in whole blocks."""
        low, high = 0, 1
        while self.request_bytes(high * self.block_size) <= num_bytes and high < 2**40:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.request_bytes(middle * self.block_size) <= num_bytes:
                low = middle
            else:
                high = middle
        return low * self.block_size
