"""The sharing walk-through: four sequences, five blocks, one copy.

A pool of 12 blocks of 4 tokens. `sys` holds 8 tokens; A and B share them and go on with tokens of
their own; C shares A's first 9 and appends one, which is in the middle of a block: a copy on write.
"""

from typing import Any

from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.config import CacheConfig
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.sampling.params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 12, 4


def _append(tables: BlockTables, request: Request, num_tokens: int) -> int:
    """Store `num_tokens` more tokens of `request`; returns how many blocks had to be copied."""
    total = request.num_computed_tokens + num_tokens
    reservation = tables.reserve(request, total)
    assert reservation is not None, "the pool is large enough"
    request.num_computed_tokens = total
    tables.publish(request)
    tables.end_schedule()
    return len(reservation.copies)


def walk_through() -> dict[str, Any]:
    """Play it on the real block tables. Everything returned is read from them."""
    tables = BlockTables(CacheConfig(NUM_BLOCKS, BLOCK_SIZE), BlockHasher(BLOCK_SIZE, b"demo"))
    params = SamplingParams(max_tokens=1)
    system = list(range(8))
    prompts = {
        "sys": system,
        "A": [*system, 20, 21, 22],
        "B": [*system, 30, 31],
        "C": [*system, 20, 40],
    }
    requests = {name: Request(RequestId(name), ids, params) for name, ids in prompts.items()}

    def fork(parent: str, child: str, num_tokens: int) -> None:
        tables.fork(requests[parent], requests[child], num_tokens)
        requests[child].num_computed_tokens = num_tokens

    copies = _append(tables, requests["sys"], 8)
    fork("sys", "A", 8)
    copies += _append(tables, requests["A"], 3)
    fork("sys", "B", 8)
    copies += _append(tables, requests["B"], 2)
    fork("A", "C", 9)
    copies += _append(tables, requests["C"], 1)

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
        "copies": copies,
        "tables": block_tables,
        "ref_counts": [tables.pool.ref_count(BlockId(block_id)) for block_id in used],
    }
    in_use = []
    for request in requests.values():
        tables.free(request)
        in_use.append(NUM_BLOCKS - tables.num_available)
    return result | {"in_use_after_free": in_use}
