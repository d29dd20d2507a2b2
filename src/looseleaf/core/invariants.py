"""The one validator: what must hold between any two steps. On in every test."""

from bisect import bisect_left
from collections import Counter

from looseleaf.core.block_pool import BlockPool
from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.contiguous import ContiguousTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.policy import POLICIES
from looseleaf.core.request import RequestId, Status
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
    tables, size = allocator.tables(), allocator.block_size
    running = {r.request_id: r for r in scheduler.running}
    _that(set(tables) == set(running), "exactly the running requests have block tables")
    for request_id, table in tables.items():
        request, held = running[request_id], len(table)
        enough = held >= blocks_for(request.num_computed_tokens, size)
        _that(enough, f"{request} holds {held} blocks, fewer than its stored tokens need")
        _that(len(set(table)) == held, f"{request} has a block twice in its table {table}")
        for i, block_id in enumerate(table):
            key = allocator.key_of(block_id)
            stored = request.token_ids[i * size : min(request.num_computed_tokens, (i + 1) * size)]
            known = () if key is None else key.token_ids
            same = all(a == b for a, b in zip(stored, known, strict=False))
            _that(same, f"block {block_id} of {request} is found under tokens it does not hold")
    if isinstance(allocator, BlockTables):
        _check_pool(allocator.pool, tables)
    elif isinstance(allocator, ContiguousTables):
        _check_regions(allocator, tables)
    if not scheduler.requests:
        free, total = allocator.num_available, allocator.num_blocks
        _that(free == total, f"no request is left, but {total - free} of {total} blocks are held")


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
    for status, members in (
        (Status.RUNNING, running),
        (Status.WAITING, waiting),
        (Status.HELD, [*held, *children]),
    ):
        for request in members:
            _that(request.status is status, f"{request} is among those {status}")
            computed, total = request.num_computed_tokens, request.num_tokens
            if status is Status.RUNNING:
                _that(0 <= computed < total, f"{request} runs with nothing left to compute")
            else:
                _that(computed == 0, f"{request} has computed tokens and no blocks")
            _that(total <= request.max_total_tokens, f"{request} is longer than it may be")
    scheduler.leaders.check(running)


def _check_pool(pool: BlockPool, tables: dict[RequestId, tuple[BlockId, ...]]) -> None:
    references = Counter(block_id for table in tables.values() for block_id in table)
    free_ids = Counter(block.block_id for block in pool.free_blocks())
    _that(free_ids.total() == pool.num_unreferenced, "the free queue knows its length")
    num_evictable = num_published = 0
    for block in map(pool.block, map(BlockId, range(pool.num_blocks))):
        block_id, unused = block.block_id, block.ref_count == 0
        _that(block.ref_count == references[block_id], f"{block} has the tables it counts")
        _that(free_ids[block_id] == unused, f"{block} is in the free queue once while unused")
        if block.key is not None:
            num_published += 1
            num_evictable += unused
            _that(pool.find(block.key) is block, f"{block} is found under its key")
            assert block.key.parent is not None
            siblings = pool.children_of(block.key.parent)
            place = bisect_left(siblings, (block.key.token_ids, block_id))
            found = siblings[place : place + 1] == [(block.key.token_ids, block_id)]
            _that(found, f"{block} is among the children of its prefix")
    _that(pool.num_evictable == num_evictable, "evictable blocks are counted right")
    _that(pool.num_published == num_published, "the index finds nothing but published blocks")


def _check_regions(
    allocator: ContiguousTables, tables: dict[RequestId, tuple[BlockId, ...]]
) -> None:
    taken: set[int] = set()
    for request_id, table in tables.items():
        region = set(range(table[0], table[0] + allocator.region_blocks(request_id)))
        _that(not taken & region, f"the region of {request_id} overlaps another")
        _that(max(region) < allocator.num_blocks, f"the region of {request_id} leaves the pool")
        taken |= region
    together = allocator.num_available + len(taken)
    _that(together == allocator.num_blocks, "free and reserved blocks add up to the pool")
