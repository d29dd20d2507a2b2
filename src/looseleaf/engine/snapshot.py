"""The state of the bookkeeping at one moment, as plain data."""

from typing import NamedTuple

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId, Status
from looseleaf.core.scheduler import Scheduler


class BlockState(NamedTuple):
    """`hash` and `num_tokens` say what the prefix index finds it under, if anything."""

    block_id: BlockId
    ref_count: int
    hash: bytes | None
    num_tokens: int


class RequestState(NamedTuple):
    """A request's own fields of these names, and its block table."""

    request_id: RequestId
    status: Status
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int | None
    num_preemptions: int
    table: tuple[BlockId, ...]


class Snapshot(NamedTuple):
    """`sequence` is the number of the last event that is part of it."""

    sequence: int
    block_size: int
    blocks: tuple[BlockState, ...]
    requests: tuple[RequestState, ...]


def snapshot(scheduler: Scheduler) -> Snapshot:
    """Everything a viewer needs to start from, between two steps. O(blocks)."""
    allocator = scheduler.allocator
    references = allocator.pinned.copy()
    references.update(b for table in allocator.tables().values() for b in table)
    blocks = []
    for block_id in map(BlockId, range(allocator.num_blocks)):
        key = allocator.key_of(block_id)
        found = (None, 0) if key is None else (key.hash, len(key.token_ids))
        blocks.append(BlockState(block_id, references[block_id], *found))
    counts = RequestState._fields[:-1]
    requests = [
        RequestState(*[*(getattr(r, name) for name in counts), allocator.table(r.request_id)])
        for r in scheduler.requests.values()
    ]
    sequence = 0 if allocator.events is None else allocator.events.sequence
    return Snapshot(sequence, allocator.block_size, tuple(blocks), tuple(requests))
