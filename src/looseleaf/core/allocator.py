"""The seam between the scheduler and whoever hands out KV memory: paged, or the old way."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from looseleaf.core.events import EventLog
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockKey
from looseleaf.core.prefix_leaders import PendingKey
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockCopy, BlockLoad, BlockSave


class Match(NamedTuple):
    """What of a request's tokens is stored already: `num_tokens` of them, in `block_ids` and then
    either, for the part that ends inside a block, in `source`, which has to be copied; or, under
    `hashes`, outside the pool, from where it has to be loaded."""

    num_tokens: int
    block_ids: tuple[BlockId, ...]
    source: BlockId | None = None
    hashes: tuple[bytes, ...] = ()

    def whole_blocks(self, block_size: int) -> "Match":
        """The same without the part that needs a copy."""
        num_blocks = len(self.block_ids) + len(self.hashes)
        return Match(num_blocks * block_size, self.block_ids, None, self.hashes)


NO_MATCH = Match(0, ())


class Reservation(NamedTuple):
    """Room to write: from entry `table_start` on the block table now reads `block_ids`, once
    `loads` and `copies` are made. Nothing changed if all are empty."""

    table_start: int
    block_ids: tuple[BlockId, ...]
    copies: tuple[BlockCopy, ...] = ()
    loads: tuple[BlockLoad, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether all of the table is told, as it is when executors first see a sequence."""
        return self.table_start == 0 and bool(self.block_ids)

    def then(self, later: "Reservation") -> "Reservation":
        """This one and a second one for the same sequence in the same step, as one."""
        if not self.block_ids:
            return later
        return self._replace(block_ids=self.block_ids + later.block_ids)


class Tier(Protocol):
    """Memory outside the pool that keeps the KV of full blocks. Bookkeeping only asks what is
    there; whoever runs the steps moves the bytes."""

    def num_found(self, keys: Sequence[BlockKey]) -> int:
        """How many of `keys`, one after another from the first, are to be loaded from there: those
        it has, unless to compute them again is the cheaper."""


class KVAllocator(Protocol):
    """Maps the positions of each sequence to slots of physical blocks.

    A sequence is known by its request's id from a first successful `reserve` (or `fork`) until
    `free`. Nothing here waits or raises for want of memory: "cannot now" is None or False.
    """

    block_size: int
    num_blocks: int
    num_pinnable: int
    pinned: Counter[BlockId]
    """Blocks that are held for prefixes, besides those in tables, and for how many each."""
    events: EventLog | None

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out now."""

    def num_blocks_needed(self, request: Request) -> int:
        """The most blocks the request can ever come to hold."""

    def match(self, request: Request) -> Match:
        """The longest stored prefix that leaves a token to compute. Holds nothing."""

    def pending_keys(self, request: Request, match: Match) -> Iterable[PendingKey]:
        """The prompt's blocks that `match` leaves to compute, the partial last included; empty if
        nobody could share them."""

    def reserve(
        self, request: Request, num_tokens: int, match: Match | None = None, spare: int = 0
    ) -> Reservation | None:
        """Room for the first `num_tokens` tokens, writable from `num_computed_tokens` on: all or
        nothing. A new sequence passes its `match`; `spare` blocks must be left over."""

    def fork(self, parent: Request, child: Request, num_tokens: int) -> bool:
        """Share `parent`'s first `num_tokens` tokens with `child`; False if that cannot be."""

    def publish(self, request: Request) -> None:
        """Make the computed tokens' full blocks findable, and the prompt's partial last one."""

    def free(self, request: Request) -> None:
        """Give up the sequence's blocks; what is stored in them may stay findable."""

    def disown(self, request: Request) -> None:
        """What the sequence holds alone may be wrong: it is not found any more."""

    def end_schedule(self) -> tuple[BlockSave, ...]:
        """No more reservations in this step: what only served as a source of copies is let go.
        Returns what was evicted for it and is to be kept elsewhere."""

    def table(self, request_id: RequestId) -> tuple[BlockId, ...]:
        """The block table; empty if the sequence has none."""

    def tables(self) -> dict[RequestId, tuple[BlockId, ...]]:
        """All block tables."""

    def key_of(self, block_id: BlockId) -> BlockKey | None:
        """What the block can be found under now."""

    def check(self) -> None:
        """Raise InvariantError if what is held and what is left do not add up."""
