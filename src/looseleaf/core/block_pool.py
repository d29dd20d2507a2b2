"""The pool of physical blocks: reference counts, reuse order and the prefix index.

It knows block ids and block contents, and nothing of requests. A block is in exactly one state:

    held       ref_count > 0                    in somebody's block table
    evictable  ref_count == 0, has a key        in the free queue, still findable
    free       ref_count == 0, no key           in the free queue, reused first
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence

from looseleaf.core.errors import ensure
from looseleaf.core.events import BlockPublished, BlockUnpublished, EventLog
from looseleaf.core.free_queue import Block, BlockId, FreeQueue
from looseleaf.core.hashing import BlockKey, same_content

Child = tuple[tuple[int, ...], BlockId]


class BlockPool:
    """`num_blocks` blocks. Each call counts first, then commits: nothing is left half changed."""

    def __init__(self, num_blocks: int, events: EventLog | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_evictable = 0
        self.evicted: list[tuple[BlockId, BlockKey]] = []
        """Since somebody last took note of it, and emptied it."""
        self.events = events
        self._blocks = list(map(Block, map(BlockId, range(num_blocks))))
        self._queue = FreeQueue(self._blocks)
        self._index: dict[bytes, Block] = {}
        # Children of a prefix, sorted by their tokens: the longest common prefix with any given
        # tokens is then at a neighbour of the place where those would be inserted.
        self._children: dict[bytes, list[Child]] = {}

    @property
    def num_unreferenced(self) -> int:
        """Blocks that can be allocated now: free and evictable."""
        return len(self._queue)

    @property
    def num_free(self) -> int:
        return len(self._queue) - self.num_evictable

    @property
    def num_published(self) -> int:
        return len(self._index)

    def block(self, block_id: BlockId) -> Block:
        """The block itself, to look at."""
        return self._blocks[block_id]

    def free_blocks(self) -> list[Block]:
        """All unreferenced blocks in the order in which they will be reused."""
        return list(self._queue)

    def children_of(self, parent: BlockKey) -> list[Child]:
        """What is published after `parent`, sorted by tokens."""
        return self._children.get(parent.hash, [])

    def ref_count(self, block_id: BlockId) -> int:
        return self._blocks[block_id].ref_count

    def allocate(self, num_blocks: int) -> list[BlockId] | None:
        """Take `num_blocks`, evicting as needed; None, and nothing is changed, if too few."""
        if num_blocks > len(self._queue):
            return None
        taken = []
        for _ in range(num_blocks):
            block = self._queue.pop_front()
            if block.key is not None:
                self.num_evictable -= 1
                self.evicted.append((block.block_id, block.key))
                self._unpublish(block)
            block.ref_count = 1
            taken.append(block.block_id)
        return taken

    def share(self, block_id: BlockId) -> None:
        """One more reference. An unreferenced block leaves the free queue as it is."""
        block = self._blocks[block_id]
        if block.ref_count == 0:
            self._queue.remove(block)
            if block.key is not None:
                self.num_evictable -= 1
        block.ref_count += 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """One reference less to each, in order: of those that nobody holds then, the first is
        evicted first. So release a table from its tail."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count <= 0:
                raise RuntimeError(f"block {block_id} was released more often than taken")
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self._queue.push_front(block)
                else:
                    self.num_evictable += 1
                    self._queue.push_back(block)

    def own(self, block_id: BlockId, offset: int, num_passing: int = 0) -> bool:
        """Whether a holder may write from `offset` on, being the only one but for `num_passing`
        references that do not count; if so, the block is from now on not found under anything
        that the write would make untrue."""
        block = self._blocks[block_id]
        if block.ref_count - num_passing > 1:
            return False
        if block.key is not None and len(block.key.token_ids) > offset:
            self._unpublish(block)
        return True

    def publish(self, block_id: BlockId, key: BlockKey) -> bool:
        """Make a held block findable under `key`, in place of what it was found under before.

        A hash has one findable block at most. If another block already answers for it, that one
        stays while somebody holds it, and this block remains unpublished (False); if nobody does,
        this block takes over, and the other is free to be reused at once. So copies of the same
        content never crowd out something else.
        """
        block = self._blocks[block_id]
        if block.key is not None:
            if block.key.hash == key.hash:
                return True
            if len(block.key.token_ids) > len(key.token_ids):
                return False  # It is found under more than this already.
            self._unpublish(block)
        other = self._index.get(key.hash)
        if other is not None:
            if other.ref_count > 0:
                return False
            self.num_evictable -= 1
            self._queue.remove(other)
            self._unpublish(other)
            self._queue.push_front(other)
        block.key = key
        self._index[key.hash] = block
        if key.parent is not None:
            siblings = self._children.setdefault(key.parent.hash, [])
            insort(siblings, (key.token_ids, block_id))
        if self.events is not None:
            self.events.emit(BlockPublished, block_id, key.hash, len(key.token_ids))
        return True

    def find(self, key: BlockKey) -> Block | None:
        """The block with exactly these contents. Equal hashes are not believed: tokens, context
        and extra keys are compared, so a collision is a miss."""
        block = self._index.get(key.hash)
        if block is None or block.key is None or not same_content(block.key, key):
            return None
        block.key.parent = key.parent  # equal; as one object the next comparison is short
        return block

    def find_longest(self, parent: BlockKey, token_ids: Sequence[int]) -> tuple[Block, int] | None:
        """The block after `parent` that begins with most of `token_ids`, and with how many."""
        siblings = self._children.get(parent.hash)
        if not siblings or not token_ids:
            return None
        wanted = tuple(token_ids)
        place = bisect_left(siblings, (wanted, BlockId(-1)))
        best, best_length = None, 0
        for tokens, block_id in siblings[max(0, place - 1) : place + 1]:
            length = _common_prefix(tokens, wanted)
            key = self._blocks[block_id].key
            assert key is not None
            assert key.parent is not None
            if length > best_length and same_content(key.parent, parent):
                best, best_length = self._blocks[block_id], length
        return None if best is None else (best, best_length)

    def evict(self, keep: int) -> list[tuple[BlockId, BlockKey]]:
        """Empty evictable blocks, the least recently used first, until `keep` are left."""
        evicted = []
        for block in list(self._queue):
            if self.num_evictable <= keep:
                break
            if block.key is not None:
                evicted.append((block.block_id, block.key))
                self.num_evictable -= 1
                self._queue.remove(block)
                self._unpublish(block)
                self._queue.push_front(block)
        return evicted

    def forget_all(self) -> None:
        """Empty the prefix index; blocks in use stay in use."""
        self.evict(0)
        for block in self._blocks:
            if block.key is not None:
                self._unpublish(block)

    def check(self, references: Counter[BlockId]) -> None:
        """Raise InvariantError unless queue, index and counts are those of these references."""
        free_ids = Counter(block.block_id for block in self._queue)
        ensure(free_ids.total() == len(self._queue), "the free queue knows its length")
        num_evictable = num_published = 0
        for block in self._blocks:
            block_id, unused = block.block_id, block.ref_count == 0
            ensure(block.ref_count == references[block_id], f"{block} has the tables it counts")
            ensure(free_ids[block_id] == unused, f"{block} is in the free queue once while unused")
            if block.key is not None:
                num_published += 1
                num_evictable += unused
                ensure(self.find(block.key) is block, f"{block} is found under its key")
                assert block.key.parent is not None
                siblings = self.children_of(block.key.parent)
                place = bisect_left(siblings, (block.key.token_ids, block_id))
                found = siblings[place : place + 1] == [(block.key.token_ids, block_id)]
                ensure(found, f"{block} is among the children of its prefix")
        ensure(self.num_evictable == num_evictable, "evictable blocks are counted right")
        ensure(self.num_published == num_published, "the index finds only published blocks")

    def _unpublish(self, block: Block) -> None:
        key = block.key
        assert key is not None
        block.key = None
        del self._index[key.hash]
        if key.parent is not None:
            siblings = self._children[key.parent.hash]
            del siblings[bisect_left(siblings, (key.token_ids, block.block_id))]
            if not siblings:
                del self._children[key.parent.hash]
        if self.events is not None:
            self.events.emit(BlockUnpublished, block.block_id, key.hash)


def _common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
