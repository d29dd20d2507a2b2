"""Where the KV memory is right now: used, still to be used, wasted, and saved by sharing."""

from dataclasses import dataclass

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import Request
from looseleaf.engine.contiguous import ContiguousTables


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the slots of the pool are; they add up to `total`.

    The split of waste is the paper's (Kwon et al., SOSP 2023, section 2.2): *reserved* slots will
    be used by the sequences that hold them, *internal* ones never will, *external* ones are lost
    to the rounding of a region. Sequences are taken to grow to `max_tokens`. `sequence_tokens` adds
    up every sequence's own length, so it passes `stored` where blocks are shared.
    """

    total: int
    stored: int
    reserved: int
    internal: int
    external: int
    sequence_tokens: int
    blocks_allocated: int
    blocks_saved: int
    """By sharing: the sum of `ref_count - 1` over shared blocks."""

    @property
    def allocated(self) -> int:
        return self.stored + self.reserved + self.internal + self.external

    @property
    def physical(self) -> float:
        """Stored slots of those allocated."""
        return self.stored / self.allocated if self.allocated else 0.0

    @property
    def pool(self) -> float:
        """Stored slots of all there are."""
        return self.stored / self.total

    @property
    def effective(self) -> float:
        """Sequence lengths over allocated slots: above 1 where sharing wins."""
        return self.sequence_tokens / self.allocated if self.allocated else 0.0

    @property
    def waste(self) -> float:
        """Allocated slots that no token will ever use."""
        return (self.internal + self.external) / self.allocated if self.allocated else 0.0

    @property
    def sharing(self) -> float:
        """Blocks saved over the blocks there would be without sharing."""
        without = self.blocks_allocated + self.blocks_saved
        return self.blocks_saved / without if without else 0.0


def usage(allocator: KVAllocator, requests: list[Request]) -> Usage:
    """Account for every slot of the pool; `requests` are those that hold a table."""
    size = allocator.block_size
    filled: dict[BlockId, int] = {}
    final: dict[BlockId, int] = {}
    entries = lengths = external = 0
    for request in requests:
        table = allocator.table(request.request_id)
        stored = min(request.num_computed_tokens, len(table) * size)
        last = max(stored, request.max_total_tokens - 1)
        lengths += stored
        entries += len(table)
        full, whole = stored // size, last // size  # blocks that are, and will be
        filled.update(dict.fromkeys(table[:full], size))
        final.update(dict.fromkeys(table[:whole], size))
        for i in range(full, len(table)):
            block_id, start = table[i], i * size
            filled[block_id] = max(filled.get(block_id, 0), min(size, max(0, stored - start)))
            if i >= whole:
                final[block_id] = max(final.get(block_id, 0), min(size, max(0, last - start)))
        if isinstance(allocator, ContiguousTables):
            external += (allocator.region_blocks(request.request_id) - len(table)) * size
    stored_slots, final_slots = sum(filled.values()), sum(final.values())
    return Usage(
        total=allocator.num_blocks * size,
        stored=stored_slots,
        reserved=final_slots - stored_slots,
        internal=len(filled) * size - final_slots,
        external=external,
        sequence_tokens=lengths,
        blocks_allocated=len(filled),
        blocks_saved=entries - len(filled),
    )
