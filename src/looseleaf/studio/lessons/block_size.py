"""The trade-off of the block size: what is empty, what is looked up, what can be shared."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig
from looseleaf.core.hashing import BlockHasher, sha256_hasher
from looseleaf.core.request import Request, RequestId
from looseleaf.demo import waste
from looseleaf.demo.sharing import append
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.lessons.scene import (
    Bar,
    Control,
    Lesson,
    Pool,
    Question,
    Rows,
    Scene,
    Step,
    Value,
)
from looseleaf.studio.lessons.stage import SECRET, pool_of

NUM_SLOTS = 512
PREFIX = 100
"""Tokens with which two prompts begin alike."""

OWN = (12, 20)
LONGEST = waste.MAX_LENGTH

_PARAMS = SamplingParams(max_tokens=1)


class _Costs(NamedTuple):
    waste: float
    entries: int
    hashes: int
    shared: int
    """Tokens of the common prefix that are stored once."""
    copied: int
    """And that were copied instead of computed."""
    pool: Pool
    refs: int


@cache
def _costs(block_size: int) -> _Costs:
    hashes = 0

    def counted(parent: bytes, token_ids: Sequence[int]) -> bytes:
        nonlocal hashes
        hashes += 1
        return sha256_hasher(parent, token_ids)

    long = Request(RequestId("long"), range(LONGEST), _PARAMS)
    tables = BlockTables(
        CacheConfig(-(-LONGEST // block_size), block_size), BlockHasher(block_size, SECRET, counted)
    )
    append(tables, long, LONGEST)
    entries, num_hashes = len(tables.table(long.request_id)), hashes

    tables = BlockTables(
        CacheConfig(max(2, NUM_SLOTS // block_size), block_size), BlockHasher(block_size, SECRET)
    )
    first, second = (
        Request(RequestId(name), [*range(PREFIX), *range(start, start + own)], _PARAMS)
        for name, start, own in (("A", 1000, OWN[0]), ("B", 2000, OWN[1]))
    )
    append(tables, first, first.num_tokens)
    match = tables.match(second)
    reservation = tables.reserve(second, second.num_tokens, match)
    assert reservation is not None
    second.num_computed_tokens = second.num_tokens
    tables.publish(second)
    tables.end_schedule()
    pool = pool_of(tables, (first, second), reservation.copies)
    shared = len(match.block_ids) * block_size
    return _Costs(
        waste.exact()[f"paged_{block_size}"],
        entries,
        num_hashes,
        shared,
        match.num_tokens - shared,
        pool,
        max(block.ref_count for block in pool.blocks),
    )


def _build(block_size: Value) -> Scene:
    assert isinstance(block_size, int)
    costs = _costs(block_size)
    every = {size: _costs(size) for size in waste.BLOCK_SIZES}
    rows = Rows(
        ("block_size", "waste", "entries", "hashes", "shared_tokens"),
        tuple((size, c.waste, c.entries, c.hashes, c.shared) for size, c in every.items()),
        waste.BLOCK_SIZES.index(block_size),
    )
    entries = tuple(
        Bar(str(size), (("entries", c.entries),), size == block_size) for size, c in every.items()
    )
    mean_length = waste.MAX_LENGTH * (1 - waste.exact()["contiguous"])
    smallest, largest = waste.BLOCK_SIZES[0], waste.BLOCK_SIZES[-1]
    return Scene(
        (block_size,),
        {
            "block_size": block_size,
            "waste": costs.waste,
            "empty": mean_length * costs.waste / (1 - costs.waste),
            "longest": LONGEST,
            "entries": costs.entries,
            "hashes": costs.hashes,
            "prefix": PREFIX,
            "shared": costs.shared,
            "copied": costs.copied,
            "blocks": sum(block.ref_count > 0 for block in costs.pool.blocks),
            "smallest": smallest,
            "largest": largest,
            "largest_waste": every[largest].waste,
            "smallest_entries": every[smallest].entries,
            "largest_shared": every[largest].shared,
        },
        (
            Step(
                "waste",
                bars=tuple(
                    Bar(str(size), (("wasted", c.waste),), size == block_size)
                    for size, c in every.items()
                ),
                unit="share",
            ),
            Step("entries", bars=entries),
            Step("share", pool=costs.pool),
            Step("middle", rows=rows),
        ),
        Question(2),
    )


BLOCK_SIZE = Lesson("block_size", (Control("block_size", waste.BLOCK_SIZES, 16),), _build)
