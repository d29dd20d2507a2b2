"""Models that think aloud first: `<think>...</think>`, then the answer."""

from dataclasses import replace

from looseleaf.text.call_replies import held
from looseleaf.text.reply import ReplyParser, Said

REASONING_PARSERS = ("none", "deepseek_r1", "qwen3")

BEGIN, END = "<think>", "</think>"
_BLANK = " \t\r\n"


class ReasoningReply:
    """A `ReplyParser` that hands what comes after the reasoning to another one.

    `thinks`: the reply begins in the middle of it, because the prompt holds `<think>` already.
    White space around the reasoning is dropped. Reasoning that does not end is all there is.
    With `shown` False it is left out.
    """

    def __init__(self, inner: ReplyParser, *, thinks: bool, shown: bool = True) -> None:
        self._inner = inner
        self._thinks = thinks
        self._shown = shown
        self._text = ""  # not read yet
        self._begun = False
        self._state = self._beginning

    def feed(self, text: str) -> Said:
        if self._state == self._after and not self._text:
            return self._inner.feed(text)
        self._text += text
        return self._state(False)

    def end(self) -> Said:
        said = self._state(True)
        rest = self._inner.end()
        return replace(said, content=said.content + rest.content, calls=said.calls + rest.calls)

    # Each state reads what it can of `_text`, by way of the next one if it comes to its end.

    def _beginning(self, final: bool) -> Said:
        rest = self._text.lstrip(_BLANK)
        if not final and rest != BEGIN and BEGIN.startswith(rest):
            return Said()
        if rest.startswith(BEGIN):
            self._text = rest[len(BEGIN) :]
        elif not self._thinks:
            self._state = self._after
            return self._give_on()
        self._state = self._thinking
        return self._thinking(final)

    def _thinking(self, final: bool) -> Said:
        text = self._text if self._begun else self._text.lstrip(_BLANK)
        self._begun = self._begun or bool(text)
        found = text.find(END)
        if found >= 0:
            reasoning = text[:found].rstrip(_BLANK)
            self._text = text[found + len(END) :]
            self._state = self._blanks
            return replace(self._blanks(final), reasoning=reasoning if self._shown else "")
        certain = len(text) - (0 if final else held(text, END))
        reasoning = text[:certain].rstrip(_BLANK)
        self._text = "" if final else text[len(reasoning) :]
        return Said(reasoning=reasoning if self._shown else "")

    def _blanks(self, final: bool) -> Said:
        self._text = self._text.lstrip(_BLANK)
        if not self._text:
            return Said()
        self._state = self._after
        return self._give_on()

    def _after(self, final: bool) -> Said:
        return self._give_on()

    def _give_on(self) -> Said:
        text, self._text = self._text, ""
        return self._inner.feed(text) if text else Said()
