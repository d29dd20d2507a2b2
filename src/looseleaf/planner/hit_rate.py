"""What share of a trace's prompts a prefix cache would have, by its capacity."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from looseleaf.planner.trace_types import Trace


class HitRate(NamedTuple):
    """Of a cache of `capacity` blocks, None if it is infinite: shares of all the prompts' blocks,
    and of their tokens, whose last blocks may be filled in part."""

    capacity: int | None
    by_blocks: float
    by_tokens: float


def lru_hit_rate(prompts: Iterable[Sequence[int]], capacity: int | None = None) -> float:
    """Hits by prompt blocks over the whole trace, from an empty cache, in the order given.

    A prompt hits its longest stored prefix; then all its blocks are used, in order. `capacity` is
    in blocks, None for an infinite cache; the least recently used one is evicted. Nothing is held
    by running requests: that is for a simulation. 0 if there are no blocks.
    """
    num_hits = num_blocks = 0
    for found, blocks in _hits(prompts, capacity):
        num_hits += found
        num_blocks += len(blocks)
    return num_hits / num_blocks if num_blocks else 0.0


def hit_rate(trace: Trace, capacity: int | None = None, *, since: int = 0) -> HitRate:
    """As `lru_hit_rate` has it, by tokens too; over the requests from number `since` on, those
    before only fill the cache."""
    size = trace.hashed_tokens
    blocks = tokens = found_blocks = found_tokens = 0
    requests = trace.requests
    hits = _hits((request.hash_ids for request in requests), capacity)
    for number, (request, (found, hash_ids)) in enumerate(zip(requests, hits, strict=True)):
        if number < since:
            continue
        blocks += len(hash_ids)
        tokens += request.num_prompt_tokens
        found_blocks += found
        found_tokens += min(found * size, request.num_prompt_tokens)
    return HitRate(
        capacity,
        found_blocks / blocks if blocks else 0.0,
        found_tokens / tokens if tokens else 0.0,
    )


def _hits(
    prompts: Iterable[Sequence[int]], capacity: int | None
) -> Iterator[tuple[int, Sequence[int]]]:
    """Each prompt with how many of its blocks, from the first on, are stored when it comes."""
    if capacity is not None and capacity < 0:
        raise ValueError(f"a cache of {capacity} blocks: it must be at least 0")
    stored: OrderedDict[int, None] = OrderedDict()
    for blocks in prompts:
        found = 0
        for block in blocks:
            if block not in stored:
                break
            found += 1
        for block in blocks:
            stored[block] = None
            stored.move_to_end(block)
        while capacity is not None and len(stored) > capacity:
            stored.popitem(last=False)
        yield found, blocks
