"""The blocks of a pool as viewers know them."""

from collections.abc import Callable, Iterable, Sequence

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockKey
from looseleaf.studio.frames import HASH_DIGITS, NOT_KEPT, Block

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""

Kept = Callable[[BlockKey], int]
"""Where else a block's content is, as `Block.kept` says it."""

LOOKED_AT = 1000
"""Blocks: so many are compared with the memory besides the pool at a time, for what comes and goes
there is no event of."""


class BlockRows:
    """With `decode`, blocks tell the text of the tokens that they are found under; with `kept`,
    where else they are."""

    def __init__(
        self,
        allocator: KVAllocator,
        decode: Decode | None = None,
        kept: Kept | None = None,
    ) -> None:
        self._allocator = allocator
        self._decode = decode
        self._kept = kept
        self._rows: dict[BlockId, Block] = {}
        self._next = 0
        """Of the blocks to look at."""

    def row(self, block_id: BlockId) -> Block:
        """As it was when it was last read."""
        return self._rows.get(block_id) or Block(block_id)

    def taken(self) -> list[Block]:
        """All that are not free."""
        return list(self._rows.values())

    def read_all(self) -> None:
        self._rows.clear()
        self.changes(map(BlockId, range(self._allocator.num_blocks)))

    def next_to_look_at(self) -> list[BlockId]:
        """Blocks whose content may meanwhile be kept elsewhere, or not any more: all in turn, some
        at a time."""
        if self._kept is None:
            return []
        start, count = self._next, self._allocator.num_blocks
        self._next = (start + LOOKED_AT) % count
        found = (i % count for i in range(start, start + min(LOOKED_AT, count)))
        return [BlockId(i) for i in found if i in self._rows]

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
        num_tokens, kept = len(block.key.token_ids), NOT_KEPT
        if self._kept is not None and num_tokens == self._allocator.block_size:
            kept = self._kept(block.key)  # others are not kept anywhere
        return Block(block_id, block.ref_count, pins, num_tokens, name, text, kept)


def _held(allocator: KVAllocator) -> set[BlockId]:
    """Where blocks are not counted: those in tables."""
    if isinstance(allocator, BlockTables):
        return set()
    return {block_id for table in allocator.tables().values() for block_id in table}
