"""How long blocks stay, and how often they are found again: of some blocks, to cost little."""

from collections.abc import Collection
from dataclasses import dataclass

from looseleaf.core.free_queue import BlockId
from looseleaf.core.step import ScheduledSequence
from looseleaf.engine.distribution import Distribution

BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)


@dataclass(slots=True)
class _Stay:
    """Of one content in one block."""

    allocated: float
    used: float


class Residency:
    """Watches every `stride`-th block. Belongs to whoever runs the steps; times are in seconds.

    A block is used when a sequence takes it into its table: newly, or because it was found there.
    """

    def __init__(self, block_size: int, stride: int) -> None:
        self.lifetime = Distribution(BOUNDS)
        """From being allocated to being evicted."""
        self.idle = Distribution(BOUNDS)
        """From the last use to being evicted."""
        self.reuse_gap = Distribution(BOUNDS)
        """From one use to the next."""
        self._block_size = block_size
        self._stride = stride
        self._stays: dict[BlockId, _Stay] = {}

    def evicted(self, block_id: BlockId, now: float) -> None:
        if block_id % self._stride:
            return
        stay = self._stays.pop(block_id, None)
        if stay is not None:
            self.lifetime.add(now - stay.allocated)
            self.idle.add(now - stay.used)

    def scheduled(self, sequence: ScheduledSequence, new: Collection[BlockId], now: float) -> None:
        """Its table changed. `new` are blocks that the step copies or loads something into."""
        for index, block_id in enumerate(sequence.block_ids, sequence.table_start):
            if block_id % self._stride:
                continue
            stay = self._stays.get(block_id)
            stored = index * self._block_size < sequence.first_position
            if stay is not None and stored and block_id not in new:
                self.reuse_gap.add(now - stay.used)
                stay.used = now
            else:
                self._stays[block_id] = _Stay(now, now)
