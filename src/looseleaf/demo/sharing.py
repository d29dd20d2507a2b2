"""The sharing walk-through: four sequences, five blocks, one copy.

A pool of 12 blocks of 4 tokens. `sys` holds 8 tokens; A and B share them and go on with tokens of
their own; C shares A's first 9 and appends one, which is in the middle of a block: a copy on write.
"""

from collections.abc import Callable, Sequence
from typing import Any

from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.config import CacheConfig
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockCopy
from looseleaf.sampling.params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 12, 4


SHARED = 9
"""Tokens of A that C shares."""

Watch = Callable[[str, BlockTables, dict[str, Request], Sequence[BlockCopy]], None]
"""Told of each thing that was done, by its name, with the sequences that there are by then and the
copies that it took."""


def append(tables: BlockTables, request: Request, num_tokens: int) -> tuple[BlockCopy, ...]:
    """Store `num_tokens` more tokens of `request`; returns the copies that had to be made."""
    total = request.num_computed_tokens + num_tokens
    reservation = tables.reserve(request, total)
    assert reservation is not None, "the pool is large enough"
    request.num_computed_tokens = total
    tables.publish(request)
    tables.end_schedule()
    return reservation.copies


def walk_through(num_shared: int = SHARED, watch: Watch | None = None) -> dict[str, Any]:
    """Play it on the real block tables. Everything returned is read from them.

    With another `num_shared`, 1 to 11, C shares so many of A's tokens.
    """
    tables = BlockTables(CacheConfig(NUM_BLOCKS, BLOCK_SIZE), BlockHasher(BLOCK_SIZE, b"demo"))
    params = SamplingParams(max_tokens=1)
    system = list(range(8))
    prompt = [*system, 20, 21, 22]
    prompts = {
        "sys": system,
        "A": prompt,
        "B": [*system, 30, 31],
        "C": [*prompt[:num_shared], 40],
    }
    requests = {name: Request(RequestId(name), ids, params) for name, ids in prompts.items()}
    live: dict[str, Request] = {}
    num_copies = 0

    def done(what: str, copies: Sequence[BlockCopy] = ()) -> None:
        if watch is not None:
            watch(what, tables, live, copies)

    def write(name: str, num_tokens: int) -> None:
        nonlocal num_copies
        live[name] = requests[name]
        copies = append(tables, requests[name], num_tokens)
        num_copies += len(copies)
        done(f"{name} writes", copies)

    def fork(parent: str, child: str, num_tokens: int) -> None:
        tables.fork(requests[parent], requests[child], num_tokens)
        requests[child].num_computed_tokens = num_tokens
        live[child] = requests[child]
        done(f"{child} forks")

    write("sys", 8)
    fork("sys", "A", 8)
    write("A", 3)
    fork("sys", "B", 8)
    write("B", 2)
    fork("A", "C", num_shared)
    write("C", 1)

    block_tables = {name: list(tables.table(r.request_id)) for name, r in requests.items()}
    used = sorted({block_id for table in block_tables.values() for block_id in table})
    lengths = {name: request.num_computed_tokens for name, request in requests.items()}
    alone = {name: blocks_for(length, BLOCK_SIZE) for name, length in lengths.items()}
    result = {
        "block_size": BLOCK_SIZE,
        "lengths": lengths,
        "blocks_without_sharing": sum(alone.values()),
        "blocks_without_sharing_or_sys": sum(alone.values()) - alone["sys"],
        "blocks_used": len(used),
        "copies": num_copies,
        "tables": block_tables,
        "ref_counts": [tables.pool.ref_count(BlockId(block_id)) for block_id in used],
    }
    in_use = []
    for name, request in requests.items():
        tables.free(request)
        del live[name]
        in_use.append(NUM_BLOCKS - tables.num_available)
        done(f"{name} ends")
    return result | {"in_use_after_free": in_use}
