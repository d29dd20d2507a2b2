"""What happened, as plain sequence-numbered records.

Whoever takes a snapshot and then folds the events after its sequence number has the state of the
bookkeeping at any moment; a gap in the numbers means that a new snapshot is needed.
"""

from collections import deque
from typing import Any, NamedTuple

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId, Status


class RequestAdded(NamedTuple):
    sequence: int
    request_id: RequestId
    num_prompt_tokens: int
    priority: int


class RequestMoved(NamedTuple):
    """A request has another `status`, with `num_computed_tokens` stored (when it begins to run:
    found in the cache, or shared with the request that it forked from). `cause` names the request
    it is held back for or forked from, or the reason why it finished; else it is empty."""

    sequence: int
    request_id: RequestId
    status: Status
    num_computed_tokens: int
    cause: str


class StepScheduled(NamedTuple):
    sequence: int
    step_id: int
    num_sequences: int
    num_tokens: int


class TableChanged(NamedTuple):
    """From entry `table_start` on the block table now reads `block_ids`."""

    sequence: int
    request_id: RequestId
    table_start: int
    block_ids: tuple[BlockId, ...]


class TableFreed(NamedTuple):
    sequence: int
    request_id: RequestId


class BlockCopied(NamedTuple):
    sequence: int
    request_id: RequestId
    source: BlockId
    destination: BlockId


class BlockPublished(NamedTuple):
    """`block_id` can be found under `hash`, which no other block can be at the same time."""

    sequence: int
    block_id: BlockId
    hash: bytes
    num_tokens: int


class BlockUnpublished(NamedTuple):
    """`block_id` cannot be found under `hash` any more: it was evicted, it is found under more, or
    another copy takes its place, which is then published next."""

    sequence: int
    block_id: BlockId
    hash: bytes


Event = (
    RequestAdded
    | RequestMoved
    | StepScheduled
    | TableChanged
    | TableFreed
    | BlockCopied
    | BlockPublished
    | BlockUnpublished
)


class EventLog:
    """Collects events for one reader, who drains them between steps.

    Holds the newest `capacity`; older ones are dropped, which the reader sees by the numbers.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self.sequence = 0

    def emit(self, kind: type[Event], *fields: Any) -> None:
        self.sequence += 1
        self._events.append(kind(self.sequence, *fields))

    def drain(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events
