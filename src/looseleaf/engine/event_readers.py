"""Several readers of one engine's events, each with a log that it alone drains."""

from collections.abc import Sequence
from typing import Any

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.events import Event, EventLog


class Fan(EventLog):
    """Passes events on to `logs`, in their order. Holds none itself: there is nothing to drain."""

    def __init__(self, logs: Sequence[EventLog]) -> None:
        super().__init__(0)
        self.logs = tuple(logs)

    def emit(self, kind: type[Event], *fields: Any) -> None:
        for log in self.logs:
            log.emit(kind, *fields)


def add_reader(allocator: KVAllocator, log: EventLog) -> None:
    """From now on events go to `log` too. To be called between two steps, as `remove_reader`."""
    _write_to(allocator, (*readers(allocator), log))


def remove_reader(allocator: KVAllocator, log: EventLog) -> None:
    """Does nothing for a log that is not among the readers."""
    _write_to(allocator, [other for other in readers(allocator) if other is not log])


def readers(allocator: KVAllocator) -> tuple[EventLog, ...]:
    """The logs that events go to."""
    log = allocator.events
    if isinstance(log, Fan):
        return log.logs
    return () if log is None else (log,)


def _write_to(allocator: KVAllocator, logs: Sequence[EventLog]) -> None:
    # One reader is written to without a detour, and without any, events cost nothing.
    log = Fan(logs) if len(logs) > 1 else next(iter(logs), None)
    allocator.events = log
    if isinstance(allocator, BlockTables):
        allocator.pool.events = log
