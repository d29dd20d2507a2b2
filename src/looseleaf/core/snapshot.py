"""The state of the bookkeeping at one moment, as plain data."""

from typing import NamedTuple

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.scheduler import Scheduler


class BlockState(NamedTuple):
    """`hash` and `num_tokens` say what the prefix index finds it under, if anything."""

    block_id: BlockId
    ref_count: int
    hash: bytes | None
    num_tokens: int


class RequestState(NamedTuple):
    request_id: RequestId
    status: str
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
    """Everything a viewer needs to start from. O(blocks); never part of a step."""
    allocator = scheduler.allocator
    blocks = []
    if isinstance(allocator, BlockTables):
        for i in range(allocator.num_blocks):
            block = allocator.pool.block(BlockId(i))
            key = block.key
            blocks.append(
                BlockState(
                    block.block_id,
                    block.ref_count,
                    None if key is None else key.hash,
                    0 if key is None else len(key.token_ids),
                )
            )
    else:
        held = {b for table in allocator.tables().values() for b in table}
        blocks = [
            BlockState(BlockId(i), int(i in held), None, 0) for i in range(allocator.num_blocks)
        ]
    requests = tuple(
        RequestState(
            r.request_id,
            r.status.value,
            r.num_prompt_tokens,
            r.num_tokens,
            r.num_computed_tokens,
            r.num_cached_tokens,
            r.num_preemptions,
            allocator.table(r.request_id),
        )
        for r in scheduler.requests.values()
    )
    sequence = 0 if allocator.events is None else allocator.events.sequence
    return Snapshot(sequence, allocator.block_size, tuple(blocks), requests)
