"""The newest frames of a feed, for whoever comes later and wants to see what was."""

from collections import deque

RING_BYTES = 32 << 20

PARTS = 4
"""So much of a ring goes at a time when it is full."""


class Ring:
    """Frames in JSON. At most `max_bytes` of them, or what the newest snapshot and the deltas after
    it take: it is `begin`, then `add`, and `begin` again whenever it `wants_snapshot`."""

    def __init__(self, max_bytes: int = RING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: deque[_Part] = deque()

    @property
    def wants_snapshot(self) -> bool:
        if not self._parts:
            return True
        last = self._parts[-1]
        return last.num_bytes > max(self._max_bytes // PARTS, 2 * len(last.snapshot))

    def begin(self, snapshot: bytes) -> None:
        """`snapshot` holds all deltas that were added."""
        self._parts.append(_Part(snapshot))
        while len(self._parts) > 1 and self.num_bytes > self._max_bytes:
            self._parts.popleft()

    def add(self, delta: bytes) -> None:
        """One that follows what was added before."""
        if self._parts:
            self._parts[-1].add(delta)

    def clear(self) -> None:
        self._parts.clear()

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self._parts)

    def frames(self) -> list[bytes]:
        """A snapshot, and all deltas after it."""
        if not self._parts:
            return []
        deltas = [delta for part in self._parts for delta in part.deltas]
        return [self._parts[0].snapshot, *deltas]


class _Part:
    def __init__(self, snapshot: bytes) -> None:
        self.snapshot = snapshot
        self.deltas: list[bytes] = []
        self.num_bytes = len(snapshot)

    def add(self, delta: bytes) -> None:
        self.deltas.append(delta)
        self.num_bytes += len(delta)
