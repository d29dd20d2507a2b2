"""Prefixes that stay: their blocks are held, whatever else needs room, until they are let go."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.errors import CapacityError, LooseleafError
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import Request, RequestId
from looseleaf.sampling.params import SamplingParams

if TYPE_CHECKING:
    from looseleaf.engine.engine import Engine


class Holder(NamedTuple):
    """Whose pins: one sees and lets go its own alone, and may hold a `share` of what may be pinned.
    Where nobody is told apart, all are those of the nameless one."""

    name: str = ""
    share: float = 1.0


EVERYBODY = Holder()


class Pin(NamedTuple):
    """`num_tokens` of a prefix, in `block_ids`, until `expiry_time` on the engine's clock."""

    pin_id: str
    num_tokens: int
    block_ids: tuple[BlockId, ...]
    expiry_time: float
    holder: str = ""


class Pins:
    """Of one pool. Belongs to whoever owns the engine."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._pins: dict[str, Pin] = {}
        self._ids = itertools.count()

    def __len__(self) -> int:
        return len(self._pins)

    def list(self, now: float, holder: Holder = EVERYBODY) -> list[Pin]:
        """Those of `holder`, in the order in which they were made."""
        self.expire(now)
        return [pin for pin in self._pins.values() if pin.holder == holder.name]

    def add(
        self,
        token_ids: Sequence[int],
        now: float,
        *,
        ttl: float | None = None,
        extra_keys: ExtraKeys = (),
        holder: Holder = EVERYBODY,
    ) -> Pin:
        """Hold the blocks of a prefix that has been computed, for `ttl` seconds or for good.

        Raises LooseleafError for a `ttl` that is no time; CapacityError where more blocks would be
        held than may be, or where the prefix is not in the cache (any more).
        """
        self.check(len(token_ids), ttl, holder)
        self.expire(now)
        # The cache never gives all tokens of a request: so it is asked for one that goes on.
        request = Request(RequestId("pin"), [*token_ids, 0], _PARAMS, extra_keys=extra_keys)
        match = self._tables.match(request)
        block_ids = match.block_ids
        if match.source is not None:
            block_ids = (*block_ids, match.source)
        if match.hashes or match.num_tokens < len(token_ids):
            raise CapacityError(
                f"only {len(match.block_ids) * self._tables.block_size} of the prefix's "
                f"{len(token_ids)} tokens are in the KV cache, which has no room to keep more of "
                f"them: try again when less is running, or give the KV cache more memory"
            )
        pinned, limit = self._tables.pinned, self._tables.num_pinnable
        num_held = len(pinned.keys() | set(block_ids))
        if num_held > limit:
            raise _too_many(num_held, limit)
        own = {block_id for pin in self.list(now, holder) for block_id in pin.block_ids}
        self._check_share(len(own | set(block_ids)), holder)
        for block_id in block_ids:
            self._tables.pool.share(block_id)
        pinned.update(block_ids)
        expiry = math.inf if ttl is None else now + ttl
        pin = Pin(f"pin-{next(self._ids)}", len(token_ids), block_ids, expiry, holder.name)
        self._pins[pin.pin_id] = pin
        return pin

    def check(self, num_tokens: int, ttl: float | None, holder: Holder = EVERYBODY) -> None:
        """Raise what `add` would for any prefix of so many tokens."""
        if ttl is not None and not 0 < ttl < math.inf:
            raise LooseleafError(f"ttl is {ttl}, but it must be a number of seconds above 0")
        needed = blocks_for(num_tokens, self._tables.block_size)
        if needed > self._tables.num_pinnable:
            raise _too_many(needed, self._tables.num_pinnable)
        self._check_share(needed, holder)

    def _check_share(self, num_blocks: int, holder: Holder) -> None:
        limit = math.floor(self._tables.num_pinnable * holder.share)
        if num_blocks > limit:
            raise CapacityError(
                f"{num_blocks} KV blocks would be pinned by this API key, but at most {limit} may "
                f"be, its share of {self._tables.num_pinnable} (pin_budget): let another prefix "
                f"go, or pin a shorter one"
            )

    def remove(self, pin_id: str, holder: Holder = EVERYBODY) -> bool:
        """Let a prefix go: from now on it is in the cache like any other. False if `holder` has
        none of this id (any more)."""
        pin = self._pins.get(pin_id)
        if pin is None or pin.holder != holder.name:
            return False
        self._let_go(pin)
        return True

    def _let_go(self, pin: Pin) -> None:
        del self._pins[pin.pin_id]
        pinned = self._tables.pinned
        for block_id in pin.block_ids:
            pinned[block_id] -= 1
            if not pinned[block_id]:
                del pinned[block_id]
        self._tables.pool.release(reversed(pin.block_ids))

    def clear(self) -> None:
        """Let all go."""
        for pin in list(self._pins.values()):
            self._let_go(pin)

    def expire(self, now: float) -> None:
        """Let those go whose time has come."""
        for pin in [pin for pin in self._pins.values() if pin.expiry_time <= now]:
            self._let_go(pin)


_PARAMS = SamplingParams(max_tokens=1)


def _too_many(num_blocks: int, limit: int) -> CapacityError:
    return CapacityError(
        f"{num_blocks} KV blocks would be pinned, but at most {limit} may be (pin_budget): let "
        f"another prefix go, pin a shorter one, or raise the budget"
    )


def pins_of(engine: "Engine") -> Pins:
    """Raises LooseleafError where nothing can be pinned."""
    if engine.pins is None:
        raise LooseleafError(
            "prefixes can only be pinned with the paged allocator and prefix caching"
        )
    return engine.pins
