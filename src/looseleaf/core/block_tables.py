"""Block tables: which physical block holds each run of `block_size` positions of a sequence.

    position   0 .. B-1   B .. 2B-1   2B .. 3B-1
    table      [  b0    ,    b1     ,    b2     ]

    slot = table[position // B] * B + position % B

Blocks are taken on demand, shared by reference count, and copied only when somebody writes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from looseleaf.core.allocator import NO_MATCH, Match, Reservation, Tier
from looseleaf.core.block_pool import BlockPool
from looseleaf.core.config import CacheConfig
from looseleaf.core.events import BlockCopied, EventLog, TableChanged, TableFreed
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockHasher, BlockKey
from looseleaf.core.prefix_leaders import PendingKey
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockCopy, BlockLoad, BlockSave

NOTHING_NEW = Reservation(0, ())


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks of a sequence with `num_tokens` stored tokens: `ceil(num_tokens / block_size)`."""
    return -(-num_tokens // block_size)


class _Table:
    __slots__ = ("block_ids", "num_published")

    def __init__(self, block_ids: list[BlockId], num_published: int) -> None:
        self.block_ids = block_ids
        self.num_published = num_published


class BlockTables:
    """The paged allocator (PagedAttention, Kwon et al., SOSP 2023, section 4)."""

    def __init__(
        self,
        config: CacheConfig,
        hasher: BlockHasher,
        events: EventLog | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.block_size = config.block_size
        self.num_blocks = config.num_blocks
        self.num_pinnable = config.num_pinnable
        self.pinned: Counter[BlockId] = Counter()
        self.prefix_caching = config.enable_prefix_caching
        self.events = events
        self.pool = BlockPool(config.num_blocks, events)
        self.tier = tier
        self._hasher = hasher
        self._tables: dict[RequestId, _Table] = {}
        self._copy_sources: Counter[BlockId] = Counter()
        self.num_copies = 0
        self.evicted: list[tuple[BlockId, BlockKey]] = []  # for the last step

    @property
    def num_available(self) -> int:
        return self.pool.num_unreferenced

    def num_blocks_needed(self, request: Request) -> int:
        # The last token that a request samples is never stored; with none to sample, all are.
        stored = max(request.num_prompt_tokens, request.max_total_tokens - 1)
        return blocks_for(stored, self.block_size)

    def match(self, request: Request) -> Match:
        if not self.prefix_caching or request.params.prompt_logprobs:
            return NO_MATCH
        size = self.block_size
        # The one place of the cap: the last token is always computed, for its logits.
        limit = request.num_tokens - 1
        keys = self._keys(request)
        found: list[BlockId] = []
        parent = self._root(request)
        for index in range(min(len(keys), limit // size)):
            # Equal chains are made to share their key objects: verifying then stops one step up.
            keys[index].parent = parent
            block = self.pool.find(keys[index])
            if block is None:
                break
            assert block.key is not None
            parent = keys[index] = block.key
            found.append(block.block_id)
        num_tokens = len(found) * size
        if self.tier is not None:
            stored = self.tier.num_found(keys[len(found) : limit // size])
            if stored:
                hashes = tuple([key.hash for key in keys[len(found) : len(found) + stored]])
                return Match(num_tokens + stored * size, tuple(found), None, hashes)
        longest = self.pool.find_longest(
            parent, request.token_ids[num_tokens : min(limit, num_tokens + size)]
        )
        if longest is None:
            return Match(num_tokens, tuple(found))
        source, length = longest
        return Match(num_tokens + length, tuple(found), source.block_id)

    def pending_keys(self, request: Request, match: Match) -> Iterator[PendingKey]:
        if not self.prefix_caching or request.params.prompt_logprobs:
            return
        if match.num_tokens >= request.num_prompt_tokens - 1 and not match.hashes:
            return  # only the token that is always computed is missing
        keys = self._keys(request)
        for index in range(len(match.block_ids), request.num_prompt_tokens // self.block_size):
            yield (index + 1) * self.block_size, keys[index].hash
        if request.num_prompt_tokens % self.block_size:
            yield request.num_prompt_tokens, self._prompt_tail_key(request).hash

    def reserve(
        self, request: Request, num_tokens: int, match: Match | None = None, spare: int = 0
    ) -> Reservation | None:
        table = self._tables.get(request.request_id)
        if table is None:
            return self._admit(request, num_tokens, match or NO_MATCH, spare)
        held = len(table.block_ids)
        index, offset = divmod(request.num_computed_tokens, self.block_size)
        # Of the blocks held already only the one to be written next can be shared: what comes
        # after it was taken for this sequence alone, for guesses that were wrong.
        shared = index < held and not self._may_write(table.block_ids[index], offset)
        num_new = max(0, blocks_for(num_tokens, self.block_size) - held)
        if not shared and num_new == 0:
            return NOTHING_NEW
        if not self._leaves(num_new + shared, spare):
            return None
        taken = self.pool.allocate(num_new + shared)
        assert taken is not None
        if shared:
            copies = (self._copy(request, table.block_ids[index], taken[0]),)
            table.block_ids[index] = taken[0]
            table.block_ids.extend(taken[1:])
            return self._changed(request, table, index, copies)
        table.block_ids.extend(taken)
        return self._changed(request, table, held, ())

    def fork(self, parent: Request, child: Request, num_tokens: int) -> bool:
        """Takes no memory: the last block is shared as well if it is partly full."""
        source = self._tables[parent.request_id]
        block_ids = source.block_ids[: blocks_for(num_tokens, self.block_size)]
        for block_id in block_ids:
            self.pool.share(block_id)
        num_published = min(source.num_published, num_tokens // self.block_size)
        table = self._tables[child.request_id] = _Table(list(block_ids), num_published)
        num_keys = num_tokens // self.block_size  # hashed once for all who share them
        child.root_key, child.block_keys = parent.root_key, parent.block_keys[:num_keys]
        self._changed(child, table, 0, ())
        return True

    def publish(self, request: Request) -> None:
        if not self.prefix_caching:
            return
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if table.num_published < num_full:
            keys = self._keys(request)
            for index in range(table.num_published, num_full):
                self.pool.publish(table.block_ids[index], keys[index])
            table.num_published = num_full
        if request.num_computed_tokens == request.num_prompt_tokens:
            self._publish_tail(request, table)

    def free(self, request: Request) -> None:
        table = self._tables.get(request.request_id)
        if table is None:
            return
        if self.prefix_caching:
            self._publish_tail(request, table)
        del self._tables[request.request_id]
        self.pool.release(reversed(table.block_ids))
        if self.events is not None:
            self.events.emit(TableFreed, request.request_id)

    def disown(self, request: Request) -> None:
        for block_id in self.table(request.request_id):
            self.pool.own(block_id, 0)

    def end_schedule(self) -> tuple[BlockSave, ...]:
        if self._copy_sources:
            self.pool.release(self._copy_sources.elements())
            self._copy_sources.clear()
        self.evicted, self.pool.evicted = self.pool.evicted, []
        return () if self.tier is None else self.saves(self.evicted)

    def saves(self, blocks: Iterable[tuple[BlockId, BlockKey]]) -> tuple[BlockSave, ...]:
        """What a tier is told of them: of the full ones."""
        return tuple(
            BlockSave(block_id, key.hash, key.parent.hash, key.token_ids)
            for block_id, key in blocks
            if key.parent is not None and len(key.token_ids) == self.block_size
        )

    def table(self, request_id: RequestId) -> tuple[BlockId, ...]:
        table = self._tables.get(request_id)
        return () if table is None else tuple(table.block_ids)

    def tables(self) -> dict[RequestId, tuple[BlockId, ...]]:
        return {request_id: tuple(t.block_ids) for request_id, t in self._tables.items()}

    def key_of(self, block_id: BlockId) -> BlockKey | None:
        return self.pool.block(block_id).key

    def check(self) -> None:
        references = self.pinned.copy()
        for table in self._tables.values():
            references.update(table.block_ids)
        self.pool.check(references)

    def _admit(
        self, request: Request, num_tokens: int, match: Match, spare: int
    ) -> Reservation | None:
        pool = self.pool
        num_new = blocks_for(num_tokens, self.block_size) - len(match.block_ids)
        # Matched blocks that nobody holds leave the free queue too, and so does a copy's source.
        revived = sum(pool.ref_count(block_id) == 0 for block_id in match.block_ids)
        if match.source is not None and pool.ref_count(match.source) == 0:
            revived += 1
        if not self._leaves(num_new + revived, spare):
            return None
        for block_id in match.block_ids:
            pool.share(block_id)
        if match.source is not None:
            pool.share(match.source)
        taken = pool.allocate(num_new)
        assert taken is not None
        copies: tuple[BlockCopy, ...] = ()
        if match.source is not None:
            copies = (self._copy(request, match.source, taken[0]),)
        table = _Table([*match.block_ids, *taken], len(match.block_ids))
        self._tables[request.request_id] = table
        # What is loaded becomes findable when the step is applied, like what is computed.
        loads = tuple(map(BlockLoad, taken, match.hashes))
        return self._changed(request, table, 0, copies)._replace(loads=loads)

    def _may_write(self, block_id: BlockId, offset: int) -> bool:
        # Copies are made before anything is written, so their sources count as nobody's.
        return self.pool.own(block_id, offset, self._copy_sources.get(block_id, 0))

    def _leaves(self, num_blocks: int, spare: int) -> bool:
        return num_blocks + spare <= self.pool.num_unreferenced

    def _copy(self, request: Request, source: BlockId, destination: BlockId) -> BlockCopy:
        """The caller's reference to `source` is kept until the step is complete, lest it become
        the destination of another copy."""
        self._copy_sources[source] += 1
        self.num_copies += 1
        if self.events is not None:
            self.events.emit(BlockCopied, request.request_id, source, destination)
        return BlockCopy(source, destination)

    def _changed(
        self, request: Request, table: _Table, start: int, copies: tuple[BlockCopy, ...]
    ) -> Reservation:
        block_ids = tuple(table.block_ids[start:])
        if self.events is not None:
            self.events.emit(TableChanged, request.request_id, start, block_ids)
        return Reservation(start, block_ids, copies)

    def _root(self, request: Request) -> BlockKey:
        if request.root_key is None:
            request.root_key = self._hasher.root(request.extra_keys)
        return request.root_key

    def _keys(self, request: Request) -> list[BlockKey]:
        """The keys of all full blocks of the request's tokens, each hashed once in its life."""
        if (len(request.block_keys) + 1) * self.block_size <= len(request.token_ids):
            self._hasher.extend(self._root(request), request.block_keys, request.token_ids)
        return request.block_keys

    def _prompt_tail_key(self, request: Request) -> BlockKey:
        if request.tail_key is None:
            num_full = request.num_prompt_tokens // self.block_size
            request.tail_key = self._partial_key(request, num_full, request.num_prompt_tokens)
        return request.tail_key

    def _partial_key(self, request: Request, num_full: int, end: int) -> BlockKey:
        parent = self._keys(request)[num_full - 1] if num_full else self._root(request)
        return self._hasher.child(parent, request.token_ids[num_full * self.block_size : end])

    def _publish_tail(self, request: Request, table: _Table) -> None:
        """Make the block that is filled in part findable under what it holds so far."""
        end = request.num_computed_tokens
        num_full = end // self.block_size
        if end % self.block_size == 0:
            return
        if end == request.num_prompt_tokens:
            key = self._prompt_tail_key(request)
        else:
            key = self._partial_key(request, num_full, end)
        self.pool.publish(table.block_ids[num_full], key)
