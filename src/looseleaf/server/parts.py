"""What a model says as a row of parts, each of one kind: reasoning, content, or a tool call."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from looseleaf.text.reply import Said


class Kind(Enum):
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class Change(Enum):
    """Every part is opened, grows any number of times, and is closed before the next is opened."""

    OPENED = auto()
    GREW = auto()
    CLOSED = auto()


@dataclass(slots=True)
class Part:
    """`text` is the arguments of a call, JSON text, which also has a `call_id` and a `name`."""

    kind: Kind
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""


News = tuple[Change, Part, str]
"""The text is what the part grew by."""


@dataclass(slots=True)
class Parts:
    parts: list[Part] = field(default_factory=list)
    _open: Part | None = None

    def feed(self, said: Said) -> Iterator[News]:
        for kind, text in ((Kind.REASONING, said.reasoning), (Kind.CONTENT, said.content)):
            if text:
                if self._open is None or self._open.kind is not kind:
                    yield from self._begin(Part(kind, len(self.parts)))
                yield self._grow(text)
        for call in said.calls:
            if call.call_id is not None:
                part = Part(Kind.CALL, len(self.parts), "", call.call_id, call.name or "")
                yield from self._begin(part)
            if call.arguments:
                yield self._grow(call.arguments)

    def end(self) -> Iterator[News]:
        """A reply that says nothing has one part all the same, with empty content."""
        if not self.parts:
            yield from self._begin(Part(Kind.CONTENT, 0))
        yield from self._close()

    def _begin(self, part: Part) -> Iterator[News]:
        yield from self._close()
        self._open = part
        self.parts.append(part)
        yield Change.OPENED, part, ""

    def _close(self) -> Iterator[News]:
        if self._open is not None:
            part, self._open = self._open, None
            yield Change.CLOSED, part, ""

    def _grow(self, text: str) -> News:
        assert self._open is not None
        self._open.text += text
        return Change.GREW, self._open, text
