"""What the scheduler asks about memory besides the pool, and who moves the bytes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave, Step, StepResult
from looseleaf.tiers.host import HostStore

if TYPE_CHECKING:
    from looseleaf.tiers.disk import DiskStore
    from looseleaf.tiers.virtual_disk import VirtualDisk

MEASURED_TOKENS = 32
"""Steps of fewer tokens say little about what computing a prompt costs."""

LOADED_BYTES = 512 * 2**20
"""Of one request in one step: others wait for it. What is beyond is computed."""

STALE_SECONDS = 10.0
"""After so long without a load it is tried again, however slow the last ones were."""

_SMOOTHING = 0.2

CLOSING_SECONDS = 10.0
"""How long a stop may take to bring the pool's blocks to the disk."""


class BlockMemory(Protocol):
    """Where the pool's bytes are: an executor."""

    def read_block(self, block_id: int) -> bytes: ...

    def write_block(self, block_id: int, data: bytes) -> None: ...


@dataclass(slots=True)
class TierCounters:
    """Blocks since the start. For want of a `lost` one a step had to be scheduled again."""

    saved: int = 0
    loaded_from_host: int = 0
    loaded_from_disk: int = 0
    lost: int = 0


@dataclass(slots=True)
class TierFigures(TierCounters):
    """The counters and what is there now. The disk did not take `dropped` blocks, and `damaged`
    ones, or such as could not be read, were on it."""

    dropped: int = 0
    damaged: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0


class KVTiers:
    """A host store, a disk store below it, or one of them. Of `block_bytes` each.

    Blocks are loaded where that is expected to take less time than computing them: both are
    measured as they happen, on `clock`. With `always_load` they are loaded in any case. `empty`
    ones hold nothing: a planner's.
    """

    def __init__(
        self,
        block_size: int,
        block_bytes: int,
        host: HostStore | None = None,
        disk: "DiskStore | VirtualDisk | None" = None,
        *,
        always_load: bool = False,
        empty: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.host, self.disk = host, disk
        self.counters = TierCounters()
        self.load_seconds: float | None = None
        """Per block, as far as it is known."""
        self.compute_seconds: float | None = None
        """Per token of a prompt."""
        self._clock = clock
        self._load_time = 0.0
        self._block_size, self._block_bytes = block_size, block_bytes
        self._always_load = always_load
        self._stored_bytes = 0 if empty else block_bytes

    def num_found(self, keys: Sequence[BlockKey]) -> int:
        """See `looseleaf.core.allocator.Tier`."""
        if not keys or not self._pays():
            return 0
        count = 0
        for key in keys[: max(1, LOADED_BYTES // self._block_bytes)]:
            if not self.has(key):
                break
            count += 1
        if count and self.disk is not None:
            on_disk = [key.hash for key in keys[:count] if not self._host_has(key)]
            gone = self.disk.missing(on_disk)
            count = next((i for i in range(count) if keys[i].hash in gone), count)
        return count

    def move(self, step: Step, memory: BlockMemory) -> bool:
        """Make the saves of a step and then its loads. False if one of these cannot be made: what
        is missing is then not found a second time, and the step must not be computed."""
        # What is saved may push out of the host's store what is to be loaded.
        in_host = [None if self.host is None else self.host.get(load.hash) for load in step.loads]
        for save in step.saves:
            self.keep(save, memory.read_block(save.block_id))
        start = self._clock()
        for load, data in zip(step.loads, in_host, strict=True):
            if data is not None:
                self.counters.loaded_from_host += 1
            else:
                data = self._from_disk(load.hash)
                if data is None:
                    self.counters.lost += 1
                    return False
                self.counters.loaded_from_disk += 1
            memory.write_block(load.block_id, data)
        if step.loads:
            self._load_time = self._clock()
            seconds = (self._load_time - start) / len(step.loads)
            self.load_seconds = _smoothed(self.load_seconds, seconds)
        return True

    def keep(self, save: BlockSave, data: bytes) -> None:
        self.counters.saved += 1
        left = [(save, data)] if self.host is None else self.host.put(save, data)
        if self.disk is not None:
            for kept in left:
                self.disk.put(*kept)

    def observe(self, step: Step, result: StepResult) -> None:
        """Learn from a step that was computed what computing costs."""
        if step.num_tokens >= MEASURED_TOKENS:
            seconds = sum(seconds for _, seconds in result.durations) / step.num_tokens
            self.compute_seconds = _smoothed(self.compute_seconds, seconds)

    def has(self, key: BlockKey) -> bool:
        """Whether the block is in memory besides the pool, or on the disk as far as is known."""
        return self._host_has(key) or (self.disk is not None and self.disk.has(key))

    def figures(self) -> TierFigures:
        return TierFigures(
            **asdict(self.counters),
            dropped=0 if self.disk is None else self.disk.num_dropped,
            damaged=0 if self.disk is None else self.disk.num_damaged,
            host_bytes=0 if self.host is None else self.host.num_bytes,
            disk_bytes=0 if self.disk is None else self.disk.num_bytes(),
        )

    def clear(self) -> None:
        """Find nothing of what was kept so far."""
        if self.host is not None:
            self.host.take_all()
        if self.disk is not None:
            self.disk.clear()

    def close(self, saves: Sequence[BlockSave], memory: BlockMemory) -> None:
        """Bring to the disk what is in memory: `saves`, the latest used first, then the host
        store's. What takes too long is left."""
        if self.disk is None:
            return
        deadline, now = perf_counter() + CLOSING_SECONDS, time.time()
        kept = ((save, memory.read_block(save.block_id)) for save in saves)
        more = [] if self.host is None else reversed(self.host.take_all())
        for order, (save, data) in enumerate(chain(kept, more)):
            left = deadline - perf_counter()
            if left < 0:
                break
            self.disk.make_room(left)
            # What comes later was used before, also where it comes to who leaves the disk first.
            self.disk.put(save, data, now - order * 1e-3)
        self.disk.close(max(1.0, deadline - perf_counter()))

    def _pays(self) -> bool:
        if self._always_load or self.load_seconds is None or self.compute_seconds is None:
            return True
        if self._clock() - self._load_time > STALE_SECONDS:
            return True
        return self.load_seconds < self.compute_seconds * self._block_size

    def _host_has(self, key: BlockKey) -> bool:
        return self.host is not None and self.host.has(key)

    def _from_disk(self, block_hash: bytes) -> bytes | None:
        if self.disk is None:
            return None
        data = self.disk.get(block_hash)
        if data is not None and len(data) != self._stored_bytes:
            self.disk.forget(block_hash)
            return None
        return data

    def make_room(self, seconds: float) -> None:
        """Let the disk catch up, no longer than so."""
        if self.disk is not None:
            self.disk.make_room(seconds)


def _smoothed(before: float | None, seconds: float) -> float:
    return seconds if before is None else before + _SMOOTHING * (seconds - before)
