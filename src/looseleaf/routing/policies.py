"""Which of several replicas gets a request. No engine, no clock, no I/O: the planner and whoever
routes real requests ask the same objects."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from looseleaf.routing.known_prefixes import KnownPrefixes

POLICIES = ("round-robin", "least-loaded", "prefix-affinity")

DEFAULT_CAPACITY = 100_000
"""Hashes that prefix affinity remembers of each replica."""

Replica = TypeVar("Replica", bound=Hashable)


class Router(Protocol[Replica]):
    @property
    def needs_loads(self) -> bool:
        """Whether `route` looks at more than the names of `loads`."""
        ...

    def route(self, loads: Mapping[Replica, int], hashes: Sequence[Hashable]) -> Replica:
        """The replica for a request.

        `loads` are the replicas that there are, at least one, each with its requests that have no
        complete answer yet. `hashes` are those of the prompt's full blocks, each of all tokens up
        to its block's end.
        """
        ...


def router(policy: str, capacity: int = DEFAULT_CAPACITY) -> Router[Replica]:
    """By its name. Raises ValueError for one that is not known."""
    if policy == "round-robin":
        return RoundRobin()
    if policy == "least-loaded":
        return LeastLoaded()
    if policy == "prefix-affinity":
        return PrefixAffinity(capacity)
    raise ValueError(f"no routing is called {policy[:40]!r}: choose one of {', '.join(POLICIES)}")


class RoundRobin(Generic[Replica]):
    """One after the other."""

    needs_loads = False

    def __init__(self) -> None:
        self._turns: _Turns[Replica] = _Turns()

    def route(self, loads: Mapping[Replica, int], hashes: Sequence[Hashable]) -> Replica:
        return self._turns.took(next(iter(self._turns.order(loads))))


class LeastLoaded(Generic[Replica]):
    """To the one with the fewest requests, of several to the one whose turn it is."""

    needs_loads = True

    def __init__(self) -> None:
        self._turns: _Turns[Replica] = _Turns()

    def route(self, loads: Mapping[Replica, int], hashes: Sequence[Hashable]) -> Replica:
        return self._turns.took(min(self._turns.order(loads), key=loads.__getitem__))


class PrefixAffinity(Generic[Replica]):
    """To the one that was sent the longest beginning of the prompt before, of several to the least
    loaded.

    Three things keep that from making one replica do everything. Whoever has too much to do is left
    out: a replica may have at most `imbalance` times the mean of requests (this one included), or
    `slack` more than the least loaded one, whichever is more. A beginning of less than
    `least_share` of the prompt's blocks counts as none, or what all prompts begin with would hold
    them together. And blocks that a replica would have to forget for this prompt count against
    those that it has.

    What a replica really evicts nobody tells: the `capacity` hashes used last are remembered of
    each, which had better be what its cache has room for.
    """

    needs_loads = True

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        *,
        imbalance: float = 1.25,
        slack: int = 4,
        least_share: float = 0.5,
    ) -> None:
        if imbalance < 1 or slack < 0:
            raise ValueError(
                f"imbalance {imbalance:g} must be at least 1, and slack {slack} at least 0"
            )
        self._capacity = capacity
        self._imbalance = imbalance
        self._slack = slack
        self._least_share = least_share
        self._known: dict[Replica, KnownPrefixes] = {}
        self._turns: _Turns[Replica] = _Turns()

    def route(self, loads: Mapping[Replica, int], hashes: Sequence[Hashable]) -> Replica:
        for gone in self._known.keys() - loads.keys():
            del self._known[gone]  # if it comes back, its cache is empty
        for new in loads.keys() - self._known.keys():
            self._known[new] = KnownPrefixes(self._capacity)
        mean = (sum(loads.values()) + 1) / len(loads)
        most = max(self._imbalance * mean - 1, min(loads.values()) + self._slack)
        free = [one for one in self._turns.order(loads) if loads[one] <= most]
        chosen = max(free, key=lambda one: (self._gain(one, hashes), -loads[one]))
        self._known[chosen].add(hashes)
        return self._turns.took(chosen)

    def _gain(self, replica: Replica, hashes: Sequence[Hashable]) -> int:
        """Blocks that it has less those that it would forget."""
        known = self._known[replica]
        num_found = known.match(hashes)
        num_forgotten = max(0, len(known) + len(hashes) - num_found - self._capacity)
        enough = num_found >= self._least_share * len(hashes)
        return (num_found if enough else 0) - num_forgotten


class _Turns(Generic[Replica]):
    """Whose turn it is: whoever comes after the one that was chosen last."""

    def __init__(self) -> None:
        self._names: list[Replica] = []
        self._next = 0

    def order(self, loads: Mapping[Replica, int]) -> list[Replica]:
        self._names = list(loads)
        start = self._next % len(self._names)
        return self._names[start:] + self._names[:start]

    def took(self, chosen: Replica) -> Replica:
        self._next = self._names.index(chosen) + 1
        return chosen
