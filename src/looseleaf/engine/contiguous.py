"""The old way, as a baseline: one contiguous region per sequence, reserved when it is admitted.

Three rules for the size, as in section 6.1 of the PagedAttention paper: `max` reserves the longest
possible sequence, `pow2` rounds the output up to a power of two, `oracle` knows the length. Regions
come from a buddy allocator, in units of the same physical blocks, so that the real engine runs on
them: a table is then simply a run of consecutive blocks, and nothing is ever shared.
"""

from collections import Counter

from looseleaf.core.allocator import NO_MATCH, Match, Reservation
from looseleaf.core.block_tables import NOTHING_NEW, blocks_for
from looseleaf.core.config import CacheConfig
from looseleaf.core.errors import ConfigError, ensure
from looseleaf.core.events import EventLog, TableChanged, TableFreed
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockKey
from looseleaf.core.prefix_leaders import PendingKey
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockSave

RULES = ("max", "pow2", "oracle")


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


class BuddyAllocator:
    """Regions of a power of two of blocks (Knuth, TAOCP vol. 1, section 2.5).

    A pool that is not a power of two is the row of its binary parts, largest first.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free: dict[int, set[int]] = {}
        self._order_of: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._free.setdefault(order, set()).add(start)
                self._roots[start] = order
                start += 1 << order
        self.num_free = num_blocks
        self.largest = max(self._roots.values())

    def allocate(self, num_blocks: int) -> int | None:
        """The first block of a region that holds `num_blocks`; None if no region is free."""
        wanted = next_power_of_two(num_blocks).bit_length() - 1
        order = next((o for o in range(wanted, self.largest + 1) if self._free.get(o)), None)
        if order is None:
            return None
        start = min(self._free[order])
        self._free[order].remove(start)
        while order > wanted:
            order -= 1
            self._free.setdefault(order, set()).add(start + (1 << order))
        self._order_of[start] = order
        self.num_free -= 1 << order
        return start

    def size(self, start: int) -> int:
        """Blocks of the region at `start`, the rounding included."""
        return 1 << self._order_of[start]

    def free(self, start: int) -> None:
        order = self._order_of.pop(start)
        self.num_free += 1 << order
        root = max(r for r in self._roots if r <= start)
        while order < self._roots[root]:
            buddy = root + ((start - root) ^ (1 << order))
            if buddy not in self._free.get(order, ()):
                break
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free.setdefault(order, set()).add(start)


class ContiguousTables:
    """The reservation allocators behind the interface of the paged one."""

    def __init__(
        self,
        config: CacheConfig,
        rule: str,
        max_model_len: int,
        events: EventLog | None = None,
    ) -> None:
        if rule not in RULES:
            raise ConfigError(f"contiguous rule {rule!r} is not known; choose one of {RULES}")
        self.block_size = config.block_size
        self.num_blocks = config.num_blocks
        self.num_pinnable = 0
        self.pinned: Counter[BlockId] = Counter()
        self.rule = rule
        self.max_model_len = max_model_len
        self.events = events
        self.buddy = BuddyAllocator(config.num_blocks)
        self._regions: dict[RequestId, tuple[int, int]] = {}
        self.num_copies = 0

    @property
    def num_available(self) -> int:
        return self.buddy.num_free

    def reserved_tokens(self, request: Request) -> int:
        """The length that the rule reserves for this request, in tokens."""
        if self.rule == "max":
            return self.max_model_len
        if self.rule == "oracle":
            return request.max_total_tokens
        output = next_power_of_two(request.max_total_tokens - request.num_prompt_tokens)
        return min(request.num_prompt_tokens + output, self.max_model_len)

    def num_blocks_needed(self, request: Request) -> int:
        needed = blocks_for(self.reserved_tokens(request), self.block_size)
        rounded = next_power_of_two(needed)
        return rounded if rounded > 1 << self.buddy.largest else needed

    def match(self, request: Request) -> Match:
        return NO_MATCH

    def pending_keys(self, request: Request, match: Match) -> list[PendingKey]:
        return []

    def reserve(
        self, request: Request, num_tokens: int, match: Match | None = None, spare: int = 0
    ) -> Reservation | None:
        region = self._regions.get(request.request_id)
        if region is not None:
            return NOTHING_NEW  # it was taken for all that the sequence may ever store
        length = blocks_for(self.reserved_tokens(request), self.block_size)
        start = self.buddy.allocate(length)
        if start is None:
            return None
        self._regions[request.request_id] = (start, length)
        block_ids = self.table(request.request_id)
        if self.events is not None:
            self.events.emit(TableChanged, request.request_id, 0, block_ids)
        return Reservation(0, block_ids)

    def fork(self, parent: Request, child: Request, num_tokens: int) -> bool:
        return False  # nothing can be shared, so the child computes everything itself

    def publish(self, request: Request) -> None:
        """Nothing is ever found again."""

    def free(self, request: Request) -> None:
        region = self._regions.pop(request.request_id, None)
        if region is None:
            return
        self.buddy.free(region[0])
        if self.events is not None:
            self.events.emit(TableFreed, request.request_id)

    def disown(self, request: Request) -> None:
        """Nothing is ever found."""

    def end_schedule(self) -> tuple[BlockSave, ...]:
        return ()

    def table(self, request_id: RequestId) -> tuple[BlockId, ...]:
        start, length = self._regions.get(request_id, (0, 0))
        return tuple(BlockId(start + i) for i in range(length))

    def tables(self) -> dict[RequestId, tuple[BlockId, ...]]:
        return {request_id: self.table(request_id) for request_id in self._regions}

    def key_of(self, block_id: BlockId) -> BlockKey | None:
        return None

    def check(self) -> None:
        taken: set[int] = set()
        for request_id, table in self.tables().items():
            region = set(range(table[0], table[0] + self.region_blocks(request_id)))
            ensure(not taken & region, f"the region of {request_id} overlaps another")
            ensure(max(region) < self.num_blocks, f"the region of {request_id} leaves the pool")
            taken |= region
        together = self.num_available + len(taken)
        ensure(together == self.num_blocks, "free and reserved blocks add up to the pool")

    def region_blocks(self, request_id: RequestId) -> int:
        """Blocks that the sequence keeps from others: its region with the buddy's rounding."""
        return self.buddy.size(self._regions[request_id][0])
