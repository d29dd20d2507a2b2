"""Tool calls that a model writes as a list of calls in Python: `[f(a=1), g(b="x")]`."""

import ast
import json
import warnings
from typing import Any

from looseleaf.text.call_replies import CallRules, Gained
from looseleaf.text.reply import Said

MAX_DEPTH = 64
_BLANK = " \t\r\n"
_NAMES = {"true": True, "false": False, "null": None}


class PythonicCalls:
    """A `ReplyParser`. A reply that begins with such a list is calls to its end; one that does not
    is content. Arguments are given out one by one, each when it is complete."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._gained = Gained(rules)
        self._text = ""  # not read yet
        self._raw = ""  # read since the last thing given out: content, if no call comes of it
        self._name = ""
        self._arguments: dict[str, str] = {}
        self._given: int | None = None  # arguments, once the call has begun
        self._value = _Value()
        self._state = self._beginning

    def feed(self, text: str) -> Said:
        self._text += text
        while self._state():
            pass
        return self._gained.take()

    def end(self) -> Said:
        rest = self._text if self._given is not None else self._raw + self._text
        if rest.strip(_BLANK) or not self._gained.num_calls:
            self._gained.add(rest)
        return self._gained.take()

    # Each state reads what it can of `_text` and says whether another one is to go on.

    def _beginning(self) -> bool:
        self._take_blanks()
        if not self._text:
            return False
        if not self._text.startswith("["):
            return self._give_up()
        self._take(1)
        self._state = self._before_call
        return True

    def _content(self) -> bool:
        """White space at the end is held back: after calls it is nothing if nothing follows."""
        shown = self._text.rstrip(_BLANK)
        self._gained.add(shown)
        self._text = self._text[len(shown) :]
        return False

    def _before_call(self) -> bool:
        self._take_blanks()
        number = next((i for i, c in enumerate(self._text) if not _in_name(c)), None)
        if number is None:
            return False
        name = self._text[:number]
        if self._text[number] != "(" or name not in self._rules.names:
            return self._give_up()
        self._take(number + 1)
        self._name, self._arguments, self._given = name, {}, None
        self._state = self._before_argument
        return True

    def _before_argument(self) -> bool:
        self._take_blanks()
        if self._text.startswith(")"):
            return self._end_call()
        number = next((i for i, c in enumerate(self._text) if not _in_name(c)), None)
        if number is None:
            return False
        key = self._text[:number]
        rest = self._text[number:].lstrip(_BLANK)
        if not rest:
            return False
        if not (rest.startswith("=") and key.isidentifier() and key not in self._arguments):
            return self._give_up()
        self._take(len(self._text) - len(rest) + 1)
        self._arguments[key] = ""
        self._value = _Value()
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        self._take(self._value.feed(self._text))
        if not self._text:
            return False
        key = next(reversed(self._arguments))
        value = _json(self._value.text)
        if value is None or self._text[0] not in ",)":
            return self._give_up()
        self._arguments[key] = value
        if self._rules.streamed:
            self._give_out()
        if self._text.startswith(")"):
            return self._end_call()
        self._take(1)
        self._state = self._before_argument
        return True

    def _end_call(self) -> bool:
        self._take(1)
        self._give_out(end=True)
        self._given = None
        self._state = self._after_call
        return True

    def _give_out(self, *, end: bool = False) -> None:
        items = [f"{json.dumps(key)}: {value}" for key, value in self._arguments.items()]
        new = items[self._given or 0 :]
        text = ", ".join(new)
        if self._given is None:
            self._gained.begin_call(self._name, "{" + text + "}" * end)
        else:
            self._gained.go_on(", " * bool(new) + text + "}" * end)
        self._given = len(items)
        self._raw = ""

    def _after_call(self) -> bool:
        self._take_blanks()
        if not self._text:
            return False
        if self._text.startswith(","):
            self._take(1)
            self._state = self._before_call
            return True
        if not self._text.startswith("]"):
            return self._give_up()
        self._text = self._text[1:]
        self._state = self._content
        return True

    def _give_up(self) -> bool:
        """What was read is no call; what was given out stays."""
        self._gained.add(self._raw)
        self._raw = ""
        self._given = None
        self._state = self._content
        return True

    def _take(self, number: int) -> None:
        self._raw += self._text[:number]
        self._text = self._text[number:]

    def _take_blanks(self) -> None:
        self._take(len(self._text) - len(self._text.lstrip(_BLANK)))


class _Value:
    """The text of an argument up to the comma or parenthesis that ends it."""

    def __init__(self) -> None:
        self.text = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> int:
        """Returns how many characters belong to it; the next one, if there is one, ends it."""
        for number, character in enumerate(text):
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
            elif character in "'\"":
                self._quote = character
            elif character in "([{" and self._depth < MAX_DEPTH:
                self._depth += 1
            elif self._depth == 0 and character in ",)]}":
                self.text += text[:number]
                return number
            elif character in ")]}":
                self._depth -= 1
        self.text += text
        return len(text)


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_.-"


def _json(text: str) -> str | None:
    """A literal of Python, with JSON's names for constants, as JSON; None for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(text.strip(), mode="eval")
        value = json.dumps(_literal(tree.body), ensure_ascii=False, allow_nan=False)
        value.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {
                _literal(key): _literal(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case _:
            return ast.literal_eval(node)
