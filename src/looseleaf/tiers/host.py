"""Blocks in memory besides the pool: what preempted sequences had stored, and evicted prefixes."""

from collections import OrderedDict
from typing import Protocol

from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave

Kept = tuple[BlockSave, bytes]
"""A block and its bytes."""


class Named(Protocol):
    """What is known of a kept block besides its hash."""

    @property
    def parent_hash(self) -> bytes: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...


class HostStore:
    """Holds up to `limit` bytes; who was not asked for longest leaves first. With `block_bytes`,
    each block counts as so many, whatever there is of it: a planner's are empty."""

    def __init__(self, limit: int, block_bytes: int | None = None) -> None:
        self.limit = limit
        self._block_bytes = block_bytes
        self.num_bytes = 0
        self._blocks: OrderedDict[bytes, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def has(self, key: BlockKey) -> bool:
        kept = self._blocks.get(key.hash)
        return kept is not None and holds(kept[0], key)

    def get(self, block_hash: bytes) -> bytes | None:
        kept = self._blocks.get(block_hash)
        if kept is None:
            return None
        self._blocks.move_to_end(block_hash)
        return kept[1]

    def put(self, save: BlockSave, data: bytes) -> list[Kept]:
        """Returns what had to leave for it; itself, if it is larger than everything."""
        if self._size(data) > self.limit:
            return [(save, data)]
        before = self._blocks.pop(save.hash, None)
        if before is not None:
            self.num_bytes -= self._size(before[1])
        self._blocks[save.hash] = (save, data)
        self.num_bytes += self._size(data)
        left = []
        while self.num_bytes > self.limit:
            _, kept = self._blocks.popitem(last=False)
            self.num_bytes -= self._size(kept[1])
            left.append(kept)
        return left

    def _size(self, data: bytes) -> int:
        return len(data) if self._block_bytes is None else self._block_bytes

    def take_all(self) -> list[Kept]:
        """Everything, the oldest first; it is empty afterwards."""
        kept = list(self._blocks.values())
        self._blocks.clear()
        self.num_bytes = 0
        return kept


def holds(kept: Named, key: BlockKey) -> bool:
    """Whether what is kept under the key's hash is really what the key says. What comes before has
    been compared already: keys are asked for in order, from the root on."""
    parent = key.parent
    return (
        parent is not None and kept.parent_hash == parent.hash and kept.token_ids == key.token_ids
    )
