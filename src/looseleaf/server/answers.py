"""The answers under way, by the ids that clients know them by."""

from typing import Protocol


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Answers:
    """Belongs to the event loop's thread. An id that clients chose may stand for several."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Cancellable]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def add(self, answer_id: str, answer: Cancellable) -> None:
        self._by_id.setdefault(answer_id, []).append(answer)

    def remove(self, answer_id: str, answer: Cancellable) -> None:
        """A second call does nothing."""
        left = [other for other in self._by_id.get(answer_id, ()) if other is not answer]
        if left:
            self._by_id[answer_id] = left
        else:
            self._by_id.pop(answer_id, None)

    def cancel(self, answer_id: str) -> bool:
        """False if there is none under way."""
        found = self._by_id.get(answer_id, ())
        for answer in list(found):
            answer.cancel()
        return bool(found)
