"""What happened, as plain sequence-numbered records.

Whoever takes a snapshot and then folds the events after its sequence number has the state of the
bookkeeping at any moment; a gap in the numbers means that a new snapshot is needed.
"""

from collections import deque
from typing import Any, NamedTuple

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId


class RequestAdded(NamedTuple):
    sequence: int
    request_id: RequestId
    num_prompt_tokens: int
    priority: int


class RequestHeld(NamedTuple):
    """It waits for `leader_id`, which is computing a prefix that both need."""

    sequence: int
    request_id: RequestId
    leader_id: RequestId


class RequestAdmitted(NamedTuple):
    """It runs, for the first time or again; `num_cached_tokens` were found stored."""

    sequence: int
    request_id: RequestId
    num_cached_tokens: int


class RequestForked(NamedTuple):
    """`child_id` runs and shares the blocks of `parent_id`'s first `num_tokens` tokens."""

    sequence: int
    parent_id: RequestId
    child_id: RequestId
    num_tokens: int


class RequestPreempted(NamedTuple):
    sequence: int
    request_id: RequestId


class RequestFinished(NamedTuple):
    sequence: int
    request_id: RequestId
    reason: str


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
    """`block_id` can be found under `hash`; what it was found under before is forgotten."""

    sequence: int
    block_id: BlockId
    hash: bytes
    num_tokens: int


class BlockUnpublished(NamedTuple):
    """`block_id` is no longer found under `hash`: evicted, or another copy took its place.

    `num_copies` findable copies remain. A hash is findable while any remain.
    """

    sequence: int
    block_id: BlockId
    hash: bytes
    num_copies: int


Event = (
    RequestAdded
    | RequestHeld
    | RequestAdmitted
    | RequestForked
    | RequestPreempted
    | RequestFinished
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
