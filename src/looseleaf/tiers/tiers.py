"""What the scheduler asks about memory besides the pool, and who moves the bytes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from time import perf_counter
from typing import Protocol

from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave, Step, StepResult
from looseleaf.tiers.disk import DiskStore
from looseleaf.tiers.host import HostStore

MEASURED_TOKENS = 32
"""Steps of fewer tokens say little about what computing a prompt costs."""

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
    """Blocks since the start. `lost` ones were to be loaded and were gone or damaged."""

    saved: int = 0
    loaded_from_host: int = 0
    loaded_from_disk: int = 0
    lost: int = 0


@dataclass(slots=True)
class TierFigures(TierCounters):
    """The counters and what is there now. `dropped` blocks came faster than the disk took them."""

    dropped: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0


class KVTiers:
    """A host store, a disk store below it, or one of them. Of `block_bytes` each.

    Blocks are loaded where that is expected to take less time than computing them: both are
    measured as they happen. With `always_load` they are loaded in any case.
    """

    def __init__(
        self,
        block_size: int,
        block_bytes: int,
        host: HostStore | None = None,
        disk: DiskStore | None = None,
        *,
        always_load: bool = False,
    ) -> None:
        self.host, self.disk = host, disk
        self.counters = TierCounters()
        self.load_seconds: float | None = None
        """Per block, as far as it is known."""
        self.compute_seconds: float | None = None
        """Per token of a prompt."""
        self._load_time = 0.0
        self._block_size, self._block_bytes = block_size, block_bytes
        self._always_load = always_load

    def num_found(self, keys: Sequence[BlockKey]) -> int:
        """See `looseleaf.core.allocator.Tier`."""
        if not keys or not self._pays():
            return 0
        count = 0
        for key in keys:
            if not self._has(key):
                break
            count += 1
        return count

    def move(self, step: Step, memory: BlockMemory) -> bool:
        """Make the saves of a step and then its loads. False, with none of the loads made, if one
        of them cannot be: what is missing is then not found a second time."""
        # Read first: what is saved may push out of a store what is to be loaded.
        start = perf_counter()
        loaded = [self._get(load.hash) for load in step.loads]
        for save in step.saves:
            self.keep(save, memory.read_block(save.block_id))
        if None in loaded:
            self.counters.lost += loaded.count(None)
            return False
        for load, data in zip(step.loads, loaded, strict=True):
            assert data is not None
            memory.write_block(load.block_id, data)
        if step.loads:
            seconds = (perf_counter() - start) / len(step.loads)
            self.load_seconds = _smoothed(self.load_seconds, seconds)
            self._load_time = perf_counter()
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

    def figures(self) -> TierFigures:
        return TierFigures(
            **asdict(self.counters),
            dropped=0 if self.disk is None else self.disk.num_dropped,
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
        deadline = perf_counter() + CLOSING_SECONDS
        kept = ((save, memory.read_block(save.block_id)) for save in saves)
        more = [] if self.host is None else reversed(self.host.take_all())
        for save, data in chain(kept, more):
            left = deadline - perf_counter()
            if left < 0:
                break
            self.disk.make_room(left)
            self.disk.put(save, data)
        self.disk.close(max(1.0, deadline - perf_counter()))

    def _pays(self) -> bool:
        if self._always_load or self.load_seconds is None or self.compute_seconds is None:
            return True
        if perf_counter() - self._load_time > STALE_SECONDS:
            return True
        return self.load_seconds < self.compute_seconds * self._block_size

    def _has(self, key: BlockKey) -> bool:
        if self.host is not None and self.host.has(key):
            return True
        return self.disk is not None and self.disk.has(key)

    def _get(self, block_hash: bytes) -> bytes | None:
        data = None if self.host is None else self.host.get(block_hash)
        if data is not None:
            self.counters.loaded_from_host += 1
        elif self.disk is not None:
            data = self.disk.get(block_hash)
            if data is not None and len(data) != self._block_bytes:
                self.disk.forget(block_hash)
                data = None
            self.counters.loaded_from_disk += data is not None
        return data


def _smoothed(before: float | None, seconds: float) -> float:
    return seconds if before is None else before + _SMOOTHING * (seconds - before)
