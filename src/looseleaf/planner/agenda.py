"""What is to come in a replay, while it still becomes more."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import NamedTuple, Protocol

from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.engine.beams import BeamSearch
from looseleaf.engine.engine import Engine


class Player(Protocol):
    """What can be asked of a replay."""

    engine: Engine

    def add(
        self, request: Request, *, then: "Then | None" = None, leaves_after: int | None = None
    ) -> None:
        """Queue it, or note that it can never fit. `then` is called once it and its children have
        ended, or at once if it cannot be; all of them are given up once it has `leaves_after`
        output tokens."""

    def search(
        self, search: BeamSearch, *, arrival: float | None = None, then: "Then | None" = None
    ) -> None:
        """Begin it, or note that it can never fit. It came at `arrival`, or just now."""

    def schedule(self, event: "Event") -> None:
        """Let something more happen, not before now."""

    def end(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request, if it has not ended."""

    def cancel(self, name: str) -> None:
        """End a beam search, if it has not ended."""


Then = Callable[[Player, float], None]
"""Gets the time. It may schedule events, and does nothing else to the replay."""


class Event(NamedTuple):
    """`act` is called when the time has come: a request's tokens take memory from then on."""

    time: float
    act: Callable[[Player], None]


class Agenda:
    """Events in the order of their times: those of a source, which has them in that order, and
    those added meanwhile. Of equal times the source's come first, then who was added first."""

    def __init__(self) -> None:
        self._source: Iterator[Event] = iter(())
        self._coming: Event | None = None
        self._added: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self.time = inf
        """Of the next one; infinite if there is none."""

    def follow(self, source: Iterable[Event]) -> None:
        """From now on this one, instead of the one before. What was added stays."""
        self._source = iter(source)
        self._coming = next(self._source, None)
        self._look()

    def add(self, event: Event) -> None:
        heapq.heappush(self._added, (event.time, next(self._order), event))
        self.time = min(self.time, event.time)

    def pop(self) -> Event:
        """The next one. Raises IndexError if there is none."""
        event = self._coming
        if event is None or (self._added and self._added[0][0] < event.time):
            event = heapq.heappop(self._added)[2]
        else:
            self._coming = next(self._source, None)
        self._look()
        return event

    def _look(self) -> None:
        coming = inf if self._coming is None else self._coming.time
        self.time = min(coming, self._added[0][0]) if self._added else coming
