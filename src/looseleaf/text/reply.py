"""What a model says, taken apart while it comes: content, reasoning, calls of tools."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one tool call. `index` is the call's within the reply; `call_id` and `name` come
    with its first piece only. `arguments` is JSON text, and a part of it perhaps."""

    index: int
    call_id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply gained."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class ReplyParser(Protocol):
    """Reads one reply. What `feed` and `end` return, joined, does not depend on how the text was
    cut into pieces. Nothing that a model writes is an error: what cannot be read is content."""

    def feed(self, text: str) -> Said: ...

    def end(self) -> Said:
        """What was held back. Nothing is fed after it."""
        ...


class PlainReply:
    """Everything is content."""

    def feed(self, text: str) -> Said:
        return Said(text)

    def end(self) -> Said:
        return Said()
