"""What a router remembers of a replica's prefix cache: what it has sent there itself."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class KnownPrefixes:
    """Of one replica: hashes of the blocks of prompts, each of which stands for all before it too.

    The `capacity` latest used are kept. Of a prompt's blocks the last are forgotten first: without
    those before them they are worth nothing.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"room for {capacity} hashes: it must be at least 1")
        self._capacity = capacity
        self._hashes: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, hashes: Sequence[Hashable]) -> int:
        """How many blocks, from the first one on, are known."""
        num_found = 0
        for one in hashes:
            if one not in self._hashes:
                break
            num_found += 1
        return num_found

    def add(self, hashes: Sequence[Hashable]) -> None:
        """Note that a prompt of these blocks was sent."""
        known = self._hashes
        for one in reversed(hashes):
            known[one] = None
            known.move_to_end(one)
        while len(known) > self._capacity:
            known.popitem(last=False)
