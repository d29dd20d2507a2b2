"""Replies with tool calls that are JSON objects between marks of some kind."""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from looseleaf.text.call_json import JsonCall
from looseleaf.text.reply import CallDelta, Said

_BLANK = " \t\r\n"
_CALL_ID_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def openai_id() -> str:
    return f"call_{_random(24)}"


def mistral_id() -> str:
    """Mistral's templates refuse ids of another length."""
    return _random(9)


def _random(length: int) -> str:
    return "".join(secrets.choice(_CALL_ID_CHARS) for _ in range(length))


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a reply's calls may be, and how they are given out.

    Only calls of `names` are calls. With `streamed`, arguments are given out as they come, and a
    call that turns out to be broken in the middle of them stays as it is; otherwise calls are
    given out whole, and broken ones are content. Calls beyond `most` are dropped.
    """

    names: Collection[str]
    streamed: bool
    most: int | None = None
    new_id: Callable[[], str] = openai_id


@dataclass(frozen=True, slots=True)
class Marks:
    """`opening` announces calls. `lead` may stand before the first, `separator` between two, and
    `closing` after the last. With `bare`, a reply may also begin with a call."""

    opening: str
    lead: str = ""
    separator: str = ""
    closing: str = ""
    bare: bool = False


HERMES = Marks("<tool_call>", closing="</tool_call>")
LLAMA3_JSON = Marks("<|python_tag|>", separator=";", bare=True)
MISTRAL = Marks("[TOOL_CALLS]", lead="[", separator=",", closing="]")


class Gained:
    """What is about to be said, and which calls there have been."""

    def __init__(self, rules: CallRules) -> None:
        self.num_calls = 0
        self._rules = rules
        self._content: list[str] = []
        self._calls: list[CallDelta] = []

    def add(self, content: str) -> None:
        self._content.append(content)

    def begin_call(self, name: str, arguments: str) -> None:
        self._call(CallDelta(self.num_calls, self._rules.new_id(), name, arguments))
        self.num_calls += 1

    def go_on(self, arguments: str) -> None:
        """With the call that was begun last."""
        if arguments:
            self._call(CallDelta(self.num_calls - 1, None, None, arguments))

    def _call(self, delta: CallDelta) -> None:
        if self._rules.most is None or delta.index < self._rules.most:
            self._calls.append(delta)

    def take(self) -> Said:
        said = Said("".join(self._content), "", tuple(self._calls))
        self._content, self._calls = [], []
        return said


class MarkedCalls:
    """A `ReplyParser`. White space next to calls is dropped, so that a reply of calls alone has no
    content."""

    def __init__(self, marks: Marks, rules: CallRules) -> None:
        self._marks = marks
        self._rules = rules
        self._gained = Gained(rules)
        self._text = ""  # not read yet
        self._raw = ""  # read since the last thing given out: content, if no call comes of it
        self._lead = ""
        self._call: JsonCall | None = None
        self._given: int | None = None  # characters of arguments, once the call has begun
        self._state = self._beginning if marks.bare else self._content

    def feed(self, text: str) -> Said:
        self._text += text
        self._run(final=False)
        return self._gained.take()

    def end(self) -> Said:
        self._run(final=True)
        return self._gained.take()

    def _run(self, *, final: bool) -> None:
        while self._state(final):
            pass

    # Each state reads what it can of `_text` and says whether another one is to go on.

    def _beginning(self, final: bool) -> bool:
        rest = self._text.lstrip(_BLANK)
        if not rest and not final:
            return False
        if rest.startswith("{"):
            self._take(len(self._text) - len(rest))
            self._state = self._before_call
        else:
            self._state = self._content
        return True

    def _content(self, final: bool) -> bool:
        found = self._text.find(self._marks.opening)
        if found >= 0:
            shown = self._text[:found].rstrip(_BLANK)
            self._gained.add(shown)
            self._text = self._text[len(shown) :]
            self._take(found - len(shown) + len(self._marks.opening))
            self._lead = self._marks.lead
            self._state = self._before_call
            return True
        if final:
            shown, rest = self._text, ""
            if self._gained.num_calls and not shown.strip(_BLANK):
                shown = ""
        else:
            certain = len(self._text) - held(self._text, self._marks.opening)
            shown = self._text[:certain].rstrip(_BLANK)
            rest = self._text[len(shown) :]
        self._gained.add(shown)
        self._text = rest
        return False

    def _before_call(self, final: bool) -> bool:
        self._take_blanks()
        if self._lead and self._text.startswith(self._lead):
            self._take(len(self._lead))
            self._lead = ""
            self._take_blanks()
        if not self._text:
            return final and self._give_up()
        if not self._text.startswith("{"):
            return self._give_up()
        self._call = JsonCall(self._rules.names)
        self._given = None
        self._state = self._in_call
        return True

    def _in_call(self, final: bool) -> bool:
        call = self._call
        assert call is not None
        self._take(call.feed(self._text))
        begun = call.name is not None and call.begun and self._rules.streamed
        if begun or call.done:
            self._give_out(call)
        if call.done or (begun and (call.broken or final)):
            self._raw = ""
            self._state = self._after_call
            return True
        return (call.broken or final) and self._give_up()

    def _give_out(self, call: JsonCall) -> None:
        if self._given is None:
            arguments = call.arguments()
            self._gained.begin_call(call.name or "", arguments)
            self._given = len(arguments)
        else:
            arguments = call.arguments(skip=self._given)
            self._gained.go_on(arguments)
            self._given += len(arguments)

    def _after_call(self, final: bool) -> bool:
        closing, separator = self._marks.closing, self._marks.separator
        rest = self._text.lstrip(_BLANK)
        blanks = len(self._text) - len(rest)
        if not rest or (closing.startswith(rest) and rest != closing):
            # Nothing, or what may become the closing.
            self._text = "" if final else self._text
            return False
        self._state = self._content
        if closing and rest.startswith(closing):
            self._text = rest[len(closing) :]
        elif separator and rest.startswith((separator, "{")):
            self._take(blanks + len(separator) * rest.startswith(separator))
            self._state = self._before_call
        return True

    def _give_up(self) -> bool:
        """What was read is no call."""
        self._gained.add(self._raw)
        self._raw = ""
        self._call = None
        self._state = self._content
        return True

    def _take(self, number: int) -> None:
        self._raw += self._text[:number]
        self._text = self._text[number:]

    def _take_blanks(self) -> None:
        self._take(len(self._text) - len(self._text.lstrip(_BLANK)))


def held(text: str, mark: str) -> int:
    """The length of the longest end of `text` that begins, but does not complete, `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
