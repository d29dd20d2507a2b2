"""A tool call that a model writes as a JSON object, read while it comes."""

import json
from collections.abc import Collection
from typing import Any

MAX_DEPTH = 64
_BLANK = " \t\r\n"
_SCALAR = frozenset("-+.0123456789eEtrufalsn")
_CLOSING = {"{": "}", "[": "]"}
_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """`{"name": "f", "arguments": {...}}`, in any order, with `parameters` for arguments too.

    `feed` takes characters until the object is complete (`done`) or cannot become a call any more
    (`broken`). `name` is there once it is known; only one of `names` is a call. `arguments` gives
    their JSON text so far, if they are an object. A line break inside a string, which JSON does
    not allow and models write, is escaped.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.name: str | None = None
        self.done = False
        self.broken = False
        self._names = names
        self._text: list[str] = []
        self._stack: list[str] = []
        self._in_string = False
        self._escaped = False
        # At depth 1: what is to come next, the key that is being answered, where a value began.
        self._next = "key"
        self._key = ""
        self._start = 0
        self._span: tuple[int, int | None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the arguments have begun, and are an object."""
        return self._span is not None

    def arguments(self, skip: int = 0) -> str:
        """Without the first `skip` characters; "{}" where a call that is done has none."""
        if self._span is None:
            return ""
        start, end = self._span
        return "".join(self._text[start + skip : end])

    def feed(self, text: str) -> int:
        """Returns how many characters were taken: all of them, unless done or broken."""
        for number, character in enumerate(text):
            length = len(self._text)
            if self._in_string:
                self._in_text(character)
            else:
                self._outside(character)
            if self.broken:
                del self._text[length:]
                return number
            if self.done:
                self._finish()
                return number + 1
        return len(text)

    def _in_text(self, character: str) -> None:
        if character < " ":
            self._text.extend(json.dumps(character)[1:-1])
            return
        self._text.append(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if len(self._stack) == 1:
                self._string_ended()

    def _string_ended(self) -> None:
        value = _value("".join(self._text[self._start :]))
        if not isinstance(value, str):
            self.broken = True
        elif self._next == "key":
            self._key, self._next = value, "colon"
        else:
            self._next = "comma"
            if self._key == "name":
                self.broken = self.name is not None or value not in self._names
                self.name = self.name if self.broken else value

    def _outside(self, character: str) -> None:
        depth = len(self._stack)
        if character in _BLANK:
            self._text.append(character)
        elif character == '"':
            self.broken = depth == 0 or (depth == 1 and self._next not in ("key", "value"))
            self._start = len(self._text) if depth == 1 else self._start
            self._text.append(character)
            self._in_string = True
        elif character in _CLOSING:
            self._open(character, depth)
        elif character in "}]":
            self._close(character, depth)
        elif character in ":,":
            if depth == 1:
                wanted = "colon" if character == ":" else "comma"
                # A number is known to be over by what comes after it.
                over = self._next == "scalar" and character == ","
                self.broken = not over and self._next != wanted
                self._next = "value" if character == ":" else "key"
            self._text.append(character)
        else:
            if depth == 1:
                self.broken = self._next not in ("value", "scalar") or self._key == "name"
                self._next = "scalar"
            self.broken |= depth == 0 or character not in _SCALAR
            self._text.append(character)

    def _open(self, character: str, depth: int) -> None:
        if depth == 0:
            self.broken = character != "{" or bool(self._text)
        elif depth == 1:
            self.broken = self._next != "value" or self._key == "name"
            if self._key in _ARGUMENTS and character == "{":
                self.broken |= self._span is not None
                self._span = self._span if self.broken else (len(self._text), None)
        self.broken |= depth >= MAX_DEPTH
        self._stack.append(character)
        self._text.append(character)

    def _close(self, character: str, depth: int) -> None:
        if not self._stack or _CLOSING[self._stack.pop()] != character:
            self.broken = True
            return
        self._text.append(character)
        if depth == 2:
            self._next = "comma"
            if self._span is not None and self._span[1] is None:
                self._span = (self._span[0], len(self._text))
        elif depth == 1:
            self.broken = self._next not in ("comma", "scalar")
            self.done = not self.broken

    def _finish(self) -> None:
        """Arguments that are missing or null are none, and those in a string are unpacked."""
        value = _value("".join(self._text))
        if not isinstance(value, dict) or self.name is None:
            self.done, self.broken = False, True
            return
        if self._span is not None:
            return
        given = next((value[key] for key in _ARGUMENTS if value.get(key)), "{}")
        if isinstance(given, str) and isinstance(_value(given), dict) and _is_utf8(given):
            self._text, self._span = list(given), (0, None)
        else:
            self.done, self.broken = False, True


def _value(text: str) -> Any:
    """None for what is no JSON, or nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
