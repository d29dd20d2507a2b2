"""Answers of /v1/responses that can be asked for again, and gone on from."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_RECORDS = 1024
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Record:
    """`messages` are the conversation up to and with the answer, without its instructions."""

    owner: str
    answer: Any
    messages: list[dict[str, Any]]


class ResponseStore:
    """In memory, and gone with the process. When there are more than `max_records`, or they take
    more than `max_bytes` as JSON, the ones least recently used are forgotten.

    A record is found by its owner only: whoever has the same API key. Belongs to the event loop's
    thread.
    """

    def __init__(self, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._records: OrderedDict[str, tuple[Record, int]] = OrderedDict()

    def put(self, answer_id: str, record: Record) -> None:
        self._forget(answer_id)
        size = len(msgspec.json.encode((record.answer, record.messages)))
        self._records[answer_id] = record, size
        self._num_bytes += size
        while len(self._records) > self._max_records or self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))

    def get(self, answer_id: str, owner: str) -> Record | None:
        entry = self._records.get(answer_id)
        if entry is None or entry[0].owner != owner:
            return None
        self._records.move_to_end(answer_id)
        return entry[0]

    def delete(self, answer_id: str, owner: str) -> bool:
        found = self.get(answer_id, owner) is not None
        if found:
            self._forget(answer_id)
        return found

    def _forget(self, answer_id: str) -> None:
        entry = self._records.pop(answer_id, None)
        if entry is not None:
            self._num_bytes -= entry[1]
