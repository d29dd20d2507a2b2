"""The blocks of a pool as viewers know them."""

from collections.abc import Callable, Iterable, Sequence

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.free_queue import BlockId
from looseleaf.studio.frames import HASH_DIGITS, Block

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


class BlockRows:
    """With `decode`, blocks tell the text of the tokens that they are found under."""

    def __init__(self, allocator: KVAllocator, decode: Decode | None = None) -> None:
        self._allocator = allocator
        self._decode = decode
        self._rows: dict[BlockId, Block] = {}

    def row(self, block_id: BlockId) -> Block:
        """As it was when it was last read."""
        return self._rows.get(block_id) or Block(block_id)

    def taken(self) -> list[Block]:
        """All that are not free."""
        return list(self._rows.values())

    def read_all(self) -> None:
        self._rows.clear()
        self.changes(map(BlockId, range(self._allocator.num_blocks)))

    def changes(self, block_ids: Iterable[BlockId]) -> list[Block]:
        """Read these blocks, and return those that became different."""
        changed = []
        held = _held(self._allocator)
        for block_id in block_ids:
            before = self.row(block_id)
            now = self._read(block_id, before, held)
            if now != before:
                changed.append(now)
                if now.free:
                    self._rows.pop(block_id, None)
                else:
                    self._rows[block_id] = now
        return changed

    def _read(self, block_id: BlockId, before: Block, held: set[BlockId]) -> Block:
        if not isinstance(self._allocator, BlockTables):
            return Block(block_id, int(block_id in held))
        block = self._allocator.pool.block(block_id)
        pins = self._allocator.pinned.get(block_id, 0)
        if block.key is None:
            return Block(block_id, block.ref_count, pins)
        name = block.key.hash[: HASH_DIGITS // 2].hex()
        text = None
        if self._decode is not None:
            text = before.text if before.hash == name else self._decode(block.key.token_ids)
        return Block(block_id, block.ref_count, pins, len(block.key.token_ids), name, text)


def _held(allocator: KVAllocator) -> set[BlockId]:
    """Where blocks are not counted: those in tables."""
    if isinstance(allocator, BlockTables):
        return set()
    return {block_id for table in allocator.tables().values() for block_id in table}
