"""The one validator: what must hold between any two steps. On in every test."""

from bisect import bisect_left
from collections import Counter

from looseleaf.core.block_pool import BlockPool
from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.contiguous import ContiguousTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.policy import POLICIES
from looseleaf.core.request import Request, RequestId, Status
from looseleaf.core.scheduler import Scheduler


class InvariantError(AssertionError):
    """The bookkeeping contradicts itself: a bug in Looseleaf."""


def _that(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def check(scheduler: Scheduler) -> None:
    """Raise InvariantError if anything is inconsistent. O(blocks + tokens); changes nothing."""
    _check_requests(scheduler)
    allocator = scheduler.allocator
    running = {r.request_id: r for r in scheduler.running}
    tables = allocator.tables()
    _that(set(tables) == set(running), "exactly the running requests have block tables")
    for request_id, table in tables.items():
        request = running[request_id]
        held, size = len(table), allocator.block_size
        _that(
            held >= blocks_for(request.num_computed_tokens, size),
            f"{request} holds {held} blocks, fewer than its stored tokens need",
        )
        _that(len(set(table)) == held, f"{request} has a block twice in its table {table}")
    if isinstance(allocator, BlockTables):
        _check_pool(allocator.pool, tables)
        _check_contents(allocator, tables, running)
    elif isinstance(allocator, ContiguousTables):
        _check_regions(allocator, tables)
    if not scheduler.requests:
        _that(
            allocator.num_available == allocator.num_blocks,
            f"no request is left, but only {allocator.num_available} of {allocator.num_blocks} "
            f"blocks are free or evictable",
        )


def _check_requests(scheduler: Scheduler) -> None:
    running, waiting, held = scheduler.running, scheduler.waiting, scheduler.leaders.held()
    key = POLICIES[scheduler.config.policy]
    _that(running == sorted(running, key=key), "running requests are in the policy's order")
    _that(waiting == sorted(waiting, key=key), "waiting requests are in the policy's order")
    children = [child for r in (*running, *waiting, *held) for child in r.children]
    known = Counter(r.request_id for r in (*running, *waiting, *held, *children))
    _that(set(known) == set(scheduler.requests), "every live request is in one of the lists")
    _that(all(n == 1 for n in known.values()), "no request is in two lists")
    most = scheduler.config.max_num_seqs
    _that(len(running) <= most, f"{len(running)} requests run, but at most {most} may")
    for request in running:
        _that(request.status is Status.RUNNING, f"{request} is in the running list")
        _that(
            0 <= request.num_computed_tokens < request.num_tokens,
            f"{request} runs with nothing left to compute",
        )
    for request in waiting:
        _that(request.status is Status.WAITING, f"{request} is in the waiting list")
    for request in (*held, *children):
        _that(request.status is Status.HELD, f"{request} is held back")
    for request in (*waiting, *held, *children):
        _that(request.num_computed_tokens == 0, f"{request} has computed tokens and no blocks")
    for request in scheduler.requests.values():
        _that(
            request.num_tokens <= request.max_total_tokens,
            f"{request} has more than its {request.max_total_tokens} tokens",
        )
    scheduler.leaders.check(running)


def _check_pool(pool: BlockPool, tables: dict[RequestId, tuple[BlockId, ...]]) -> None:
    references = Counter(block_id for table in tables.values() for block_id in table)
    free = pool.free_blocks()
    free_ids = {block.block_id for block in free}
    _that(len(free) == len(free_ids) == pool.num_unreferenced, "the free queue is a simple list")
    num_evictable = 0
    for i in range(pool.num_blocks):
        block = pool.block(BlockId(i))
        _that(
            block.ref_count == references[block.block_id],
            f"{block} is in {references[block.block_id]} tables",
        )
        _that(
            (block.ref_count == 0) == (block.block_id in free_ids),
            f"{block} is in the free queue exactly while nobody refers to it",
        )
        if block.key is not None:
            num_evictable += block.ref_count == 0
            _that(pool.find(block.key) is block, f"{block} is found under its key")
            assert block.key.parent is not None
            entry = (block.key.token_ids, block.block_id)
            siblings = pool.children_of(block.key.parent)
            place = bisect_left(siblings, entry)
            _that(siblings[place : place + 1] == [entry], f"{block} is a child of its prefix")
    _that(pool.num_evictable == num_evictable, "evictable blocks are counted right")
    published = sum(pool.block(BlockId(i)).key is not None for i in range(pool.num_blocks))
    _that(pool.num_published == published, "the index finds nothing but published blocks")


def _check_contents(
    allocator: BlockTables,
    tables: dict[RequestId, tuple[BlockId, ...]],
    running: dict[RequestId, Request],
) -> None:
    size = allocator.block_size
    for request_id, table in tables.items():
        request = running[request_id]
        for i, block_id in enumerate(table):
            key = allocator.pool.block(block_id).key
            if key is not None:
                stored = request.token_ids[i * size : request.num_computed_tokens]
                common = min(len(stored), len(key.token_ids))
                _that(
                    tuple(stored[:common]) == key.token_ids[:common],
                    f"block {block_id} of {request} is found under other tokens than it holds",
                )


def _check_regions(
    allocator: ContiguousTables, tables: dict[RequestId, tuple[BlockId, ...]]
) -> None:
    taken: set[int] = set()
    for request_id, table in tables.items():
        region = set(range(table[0], table[0] + allocator.region_blocks(request_id)))
        _that(not taken & region, f"the region of {request_id} overlaps another")
        _that(max(region) < allocator.num_blocks, f"the region of {request_id} leaves the pool")
        taken |= region
    _that(
        allocator.num_available + len(taken) == allocator.num_blocks,
        "free and reserved blocks add up to the pool",
    )
