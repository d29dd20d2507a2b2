"""What can be found in the pool, told as vLLM's KV events, which cache-aware routers follow.

The wire form is that of vllm/distributed/kv_events.py since 0.24: a batch is an array, and each
event in it a map that has its `type`. A hash is the last 64 bits of the block's. Only full blocks
are told of: partly filled ones, which can be found here too, have no counterpart there.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from looseleaf.core.block_pool import BlockPool
from looseleaf.core.events import BlockPublished, BlockUnpublished, Event, EventLog
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockKey

MEDIUM = "GPU"
"""vLLM's word for the pool itself, whatever memory it is in."""


class KVEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(KVEvent, kw_only=True):
    """A run of blocks, each the next one's parent. Of a chain's first block `extra_keys` has what
    its KV depends on besides tokens, such as the cache salt."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(KVEvent, kw_only=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True):
    """`ts` is the time of day, in seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def wire_hash(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big")


class Change(NamedTuple):
    """What can be found no more, and what can be from now on, parents before their children.
    `removed` is None if it is all that could be found before."""

    time: float
    removed: Sequence[bytes] | None
    stored: Sequence[BlockKey]


class BlockLog(EventLog):
    """Of all events, those of what can be found."""

    def emit(self, kind: type[Event], *fields: Any) -> None:
        if kind is BlockPublished or kind is BlockUnpublished:
            super().emit(kind, *fields)


class KVEventSource:
    """What changed in `pool` since it was last asked, by `log`, which the pool writes.

    To be asked between two steps. What comes and goes in between is not told of.
    """

    def __init__(self, pool: BlockPool, block_size: int, log: BlockLog) -> None:
        self._pool = pool
        self._block_size = block_size
        self._log = log
        self._seen = 0
        self._told: set[bytes] = set()

    def news(self) -> Change | None:
        """None if there are none."""
        if self._log.sequence == self._seen:
            return None
        events = self._log.drain()
        is_complete = len(events) == self._log.sequence - self._seen
        self._seen = self._log.sequence
        if not is_complete:
            return self.everything()
        latest: dict[bytes, BlockPublished | BlockUnpublished] = {}
        for event in events:
            assert isinstance(event, BlockPublished | BlockUnpublished)
            latest.pop(event.hash, None)  # so that the order is that of the last of each
            latest[event.hash] = event
        removed: list[bytes] = []
        stored: list[BlockKey] = []
        for block_hash, event in latest.items():
            if isinstance(event, BlockUnpublished):
                if block_hash in self._told:
                    removed.append(block_hash)
            elif event.num_tokens == self._block_size and block_hash not in self._told:
                key = self._pool.block(event.block_id).key
                assert key is not None
                stored.append(key)
        if not removed and not stored:
            return None
        is_all = bool(removed) and len(removed) == len(self._told)
        self._told.difference_update(removed)
        self._told.update(key.hash for key in stored)
        return Change(time.time(), None if is_all else removed, stored)

    def everything(self) -> Change:
        """For who may have missed something: that all is gone, and then all that there is."""
        self._log.drain()
        self._seen = self._log.sequence
        blocks = map(self._pool.block, map(BlockId, range(self._pool.num_blocks)))
        keys = {
            block.key.hash: block.key
            for block in blocks
            if block.key is not None and len(block.key.token_ids) == self._block_size
        }
        ordered: dict[bytes, BlockKey] = {}
        for key in keys.values():
            chain = []
            link: BlockKey | None = key
            while link is not None and link.hash in keys and link.hash not in ordered:
                chain.append(link)
                link = link.parent
            ordered.update((one.hash, one) for one in reversed(chain))
        self._told = set(ordered)
        return Change(time.time(), None, list(ordered.values()))


def kv_event_batch(change: Change, block_size: int) -> KVEventBatch:
    """A change in vLLM's words; may run anywhere."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    if change.removed is None:
        events.append(AllBlocksCleared())
    elif change.removed:
        gone = [wire_hash(block_hash) for block_hash in change.removed]
        events.append(BlockRemoved(block_hashes=gone, medium=MEDIUM, group_idx=0))
    hashes: list[int] = []
    tokens: list[int] = []
    extras: list[tuple[str, ...] | None] = []
    last = b""
    for key in change.stored:
        parent = key.parent
        assert parent is not None
        is_first = not parent.token_ids  # a root has none
        if not hashes or parent.hash != last:
            hashes, tokens, extras = [], [], []
            events.append(
                BlockStored(
                    block_hashes=hashes,
                    parent_block_hash=None if is_first else wire_hash(parent.hash),
                    token_ids=tokens,
                    block_size=block_size,
                    lora_id=None,
                    medium=MEDIUM,
                    lora_name=None,
                    extra_keys=extras,
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            )
        hashes.append(wire_hash(key.hash))
        tokens.extend(key.token_ids)
        extra = tuple(value for _, value in parent.extra) if is_first else ()
        extras.append(extra or None)
        last = key.hash
    return KVEventBatch(change.time, events, 0)
