"""What a trace's shared prefixes tell before anything is deployed."""

from collections.abc import Sequence

from looseleaf.planner.amounts import share
from looseleaf.planner.hit_rate import lru_hit_rate
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace_types import Trace

MANY = 0.1
"""Of the prompts, from where on it is worth a warning."""

WORSE = 0.9
"""Of the hit rate of one cache, below which routing is worth a warning."""


def short_prefixes(trace: Trace, summary: Summary) -> list[str]:
    """Prefixes that fill no block: they are found, by copying, but their memory is not shared."""
    size = summary.block_size
    if not summary.prefix_caching or size <= trace.hashed_tokens:
        return []
    known: set[int] = set()
    num_short = 0
    for request in trace.requests:
        num_shared = 0
        for one in request.hash_ids:
            if one not in known:
                break
            num_shared += trace.hashed_tokens
        num_short += 0 < num_shared < size
        known.update(request.hash_ids)
    if num_short <= MANY * len(trace.requests):
        return []
    return [
        f"{num_short} of {len(trace.requests)} prompts share less than a block of {size} tokens "
        f"with an earlier one: what they share is copied and not shared; a block_size of "
        f"{trace.hashed_tokens} or less would share it"
    ]


def lost_hits(trace: Trace, parts: Sequence[Sequence[int]], summary: Summary, routing: str) -> str:
    """What routing to several caches costs in hits, or nothing if it is little.

    `parts` are the places of each replica's requests in the trace. The hit rate of a trace needs no
    replay: one cache of all the replicas' memory is compared with the caches that there are.
    """
    hashes = [request.hash_ids for request in trace.requests]
    num_blocks = sum(map(len, hashes))
    if not summary.prefix_caching or not num_blocks:
        return ""
    capacity = summary.num_blocks * summary.block_size // trace.hashed_tokens
    together = lru_hit_rate(hashes, len(parts) * capacity)
    hits = 0.0
    for part in parts:
        own = [hashes[index] for index in part]
        hits += lru_hit_rate(own, capacity) * sum(map(len, own))
    apart = hits / num_blocks
    if apart >= WORSE * together:
        return ""
    advice = "" if routing == "prefix-affinity" else ": --routing prefix-affinity would keep more"
    return (
        f"{routing} over {len(parts)} replicas lowers the hit rate: {share(apart)} of the "
        f"prompts' blocks against {share(together)} with one cache of the same memory (the "
        f"trace's hashes in LRU caches; nothing else is simulated for this){advice}"
    )
