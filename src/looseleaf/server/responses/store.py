"""Answers of /v1/responses that can be asked for again, and gone on from."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from looseleaf.server.gate import too_many

if TYPE_CHECKING:
    from looseleaf.server.responses.background import Background

MAX_RECORDS = 1024
MAX_BYTES = 64 * 2**20
MAX_UNDER_WAY = 256


@dataclass(frozen=True, slots=True)
class Record:
    """`messages` are the conversation up to and with the answer, without its instructions."""

    owner: str
    answer: Any
    messages: list[dict[str, Any]]
    background: "Background | None" = None

    @property
    def size(self) -> int:
        """In bytes, as JSON."""
        events = self.background.events if self.background is not None else None
        return len(msgspec.json.encode((self.answer, self.messages))) + sum(map(len, events or ()))


class ResponseStore:
    """In memory, and gone with the process. When there are more than `max_records`, or they take
    more than `max_bytes` as JSON, the ones least recently used are forgotten; those that go on in
    the background are not, of which there may be `max_under_way` besides.

    A record is found by its owner only: whoever has the same API key. Belongs to the event loop's
    thread.
    """

    def __init__(
        self,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        max_under_way: int = MAX_UNDER_WAY,
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_under_way = max_under_way
        self._num_bytes = 0
        self._records: OrderedDict[str, tuple[Record, int]] = OrderedDict()
        self._under_way: dict[str, Record] = {}

    def check_room(self) -> None:
        """Raises ApiError 429 where one more cannot `begin`."""
        if len(self._under_way) >= self._max_under_way:
            raise too_many(
                f"{self._max_under_way} responses are under way in the background, which is the "
                "limit here: try again when one of them has ended",
                1,
            )

    def begin(self, answer_id: str, record: Record) -> None:
        """Keep one that goes on in the background; `put` must follow at its end."""
        self._under_way[answer_id] = record

    def put(self, answer_id: str, record: Record) -> None:
        """One that was deleted while it was under way stays deleted."""
        if record.background is not None and self._under_way.pop(answer_id, None) is None:
            return
        self._forget(answer_id)
        size = record.size
        self._records[answer_id] = record, size
        self._num_bytes += size
        while len(self._records) > self._max_records or self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))

    def get(self, answer_id: str, owner: str) -> Record | None:
        record = self._under_way.get(answer_id)
        if record is None and answer_id in self._records:
            record = self._records[answer_id][0]
        if record is None or record.owner != owner:
            return None
        if answer_id in self._records:
            self._records.move_to_end(answer_id)
        return record

    def delete(self, answer_id: str) -> None:
        self._under_way.pop(answer_id, None)
        self._forget(answer_id)

    def _forget(self, answer_id: str) -> None:
        entry = self._records.pop(answer_id, None)
        if entry is not None:
            self._num_bytes -= entry[1]
