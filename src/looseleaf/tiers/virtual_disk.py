"""A disk that a planner thinks of: its blocks hold nothing, and its time passes on a clock."""

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple, Protocol

from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave
from looseleaf.tiers.host import holds


class DiskSpeed(NamedTuple):
    """In bytes a second."""

    read: float
    write: float


ASSUMED = DiskSpeed(0.5e9, 0.5e9)
"""An assumption, about what a digest of each block and SQLite leave of a fast drive. The store read
0.28 GB/s from the page cache of two busy cores."""


class SteppedClock(Protocol):
    """Passes as somebody says."""

    def __call__(self) -> float: ...

    def wait_until(self, time: float) -> None: ...


class VirtualDisk:
    """In place of a `DiskStore`, in a folder that is empty at first and that nobody else uses.

    Whoever reads waits for it. Writes happen behind its back, one after the other, and take nothing
    from reads; what is still to be written, `queue_bytes` at most, is found in memory. Who was not
    used for longest leaves first.
    """

    def __init__(
        self,
        limit: int,
        queue_bytes: int,
        block_bytes: int,
        speed: DiskSpeed,
        clock: SteppedClock,
    ) -> None:
        self.num_dropped = 0
        self.num_damaged = 0
        self._most = max(1, limit // block_bytes)
        self._most_pending = queue_bytes // block_bytes
        self._block_bytes = block_bytes
        self._speed = speed
        self._clock = clock
        self._kept: OrderedDict[bytes, BlockSave] = OrderedDict()
        """The last used one is the last."""
        self._pending: OrderedDict[bytes, float] = OrderedDict()
        """Those of them that are still to be written, and when they will be."""
        self._all_written = 0.0

    def has(self, key: BlockKey) -> bool:
        self._write()
        kept = self._kept.get(key.hash)
        return kept is not None and holds(kept, key)

    def missing(self, hashes: Collection[bytes]) -> set[bytes]:
        self._write()
        return {h for h in hashes if h not in self._kept}

    def get(self, block_hash: bytes) -> bytes | None:
        self._write()
        if block_hash not in self._kept:
            return None
        if block_hash not in self._pending:
            self._kept.move_to_end(block_hash)
            self._clock.wait_until(self._clock() + self._block_bytes / self._speed.read)
        return b""

    def put(self, save: BlockSave, data: bytes, used: float | None = None) -> None:
        """`used` is of no account: all is just used."""
        self._write()
        if save.hash in self._kept:
            if save.hash not in self._pending:
                self._kept.move_to_end(save.hash)
        elif len(self._pending) >= self._most_pending:
            self.num_dropped += 1
        else:
            begins = max(self._all_written, self._clock())
            self._all_written = begins + self._block_bytes / self._speed.write
            self._kept[save.hash] = save
            self._pending[save.hash] = self._all_written

    def forget(self, block_hash: bytes) -> None:
        self._kept.pop(block_hash, None)
        self._pending.pop(block_hash, None)

    def clear(self) -> None:
        self._kept.clear()
        self._pending.clear()

    def make_room(self, seconds: float) -> None:
        self.close(seconds)

    def close(self, seconds: float) -> None:
        """Wait until all is written, but no longer than so."""
        self._clock.wait_until(min(self._all_written, self._clock() + seconds))

    def num_bytes(self) -> int:
        self._write()
        return (len(self._kept) - len(self._pending)) * self._block_bytes

    def _write(self) -> None:
        """What has been written by now."""
        now = self._clock()
        while self._pending:
            block_hash, written = next(iter(self._pending.items()))
            if written > now:
                return
            if len(self._kept) - len(self._pending) >= self._most:
                del self._kept[next(h for h in self._kept if h not in self._pending)]
            del self._pending[block_hash]
