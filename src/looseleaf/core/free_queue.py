"""The free blocks in the order in which they are to be reused; every operation is O(1)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NewType

from looseleaf.core.hashing import BlockKey

BlockId = NewType("BlockId", int)


@dataclass(slots=True, eq=False)
class Block:
    """One physical block: who refers to it is counted, not listed.

    `key` names its contents while the prefix index can find it. `prev` and `next` are the free
    queue's own and set only while `ref_count` is 0.
    """

    block_id: BlockId
    ref_count: int = 0
    key: BlockKey | None = None
    prev: "Block | None" = field(default=None, repr=False)
    next: "Block | None" = field(default=None, repr=False)


class FreeQueue:
    """A doubly linked list through the blocks themselves; the front is reused first."""

    def __init__(self, blocks: list[Block]) -> None:
        self._head, self._tail = Block(BlockId(-1)), Block(BlockId(-1))
        self._size = len(blocks)
        last = self._head
        for block in blocks:
            last.next, block.prev = block, last
            last = block
        last.next, self._tail.prev = self._tail, last

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def push_back(self, block: Block) -> None:
        last = self._tail.prev
        assert last is not None
        last.next = self._tail.prev = block
        block.prev, block.next = last, self._tail
        self._size += 1

    def push_front(self, block: Block) -> None:
        first = self._head.next
        assert first is not None
        self._head.next = first.prev = block
        block.prev, block.next = self._head, first
        self._size += 1

    def remove(self, block: Block) -> None:
        before, after = block.prev, block.next
        assert before is not None
        assert after is not None
        before.next, after.prev = after, before
        block.prev = block.next = None
        self._size -= 1

    def pop_front(self) -> Block:
        """The block to reuse; the queue must not be empty."""
        block = self._head.next
        assert block is not None
        self.remove(block)
        return block
