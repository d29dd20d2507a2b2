"""What share of a trace's prompt blocks a prefix cache would have, by its capacity."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


def lru_hit_rate(prompts: Iterable[Sequence[int]], capacity: int | None = None) -> float:
    """Hits by prompt blocks over the whole trace, from an empty cache, in the order given.

    A prompt hits its longest stored prefix; then all its blocks are used, in order. `capacity` is
    in blocks, None for an infinite cache; the least recently used one is evicted. Nothing is held
    by running requests: that is for a simulation. 0 if there are no blocks.
    """
    if capacity is not None and capacity < 0:
        raise ValueError(f"a cache of {capacity} blocks: it must be at least 0")
    stored: OrderedDict[int, None] = OrderedDict()
    num_hits = num_blocks = 0
    for blocks in prompts:
        num_blocks += len(blocks)
        for block in blocks:
            if block not in stored:
                break
            num_hits += 1
        for block in blocks:
            stored[block] = None
            stored.move_to_end(block)
        while capacity is not None and len(stored) > capacity:
            stored.popitem(last=False)
    return num_hits / num_blocks if num_blocks else 0.0
