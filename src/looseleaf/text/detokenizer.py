"""Tokens to text while they arrive: never half a character, never part of a stop string."""

import codecs
from collections.abc import Sequence

from looseleaf.core.errors import LooseleafError
from looseleaf.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one sequence, given out piece by piece as it becomes certain.

    What `append` and `finish` return, joined, is the text of all tokens up to the stop, however
    the tokens were split over the calls::

        tokens      The |  answer | ...  | EN  | D of
        text        The | answer  | ...  | EN  | D of          stop: "END"
        returned    The | answer  | ...  |     |               stopped at token 5

    A stop string is looked for in the text itself, across tokens. Of several, the one whose end
    comes first wins; of those that end together, the longest, so that no part of it is shown.
    Text before it is complete; text after it is dropped. The string itself is given out, once,
    only with `include_stop`.

    Until `min_tokens` tokens have come, no stop string counts as complete; one may still begin
    before and end after. One token may end a stop string from number `min_tokens` on.

    `continues_text`: the tokens go on from a prompt, so a first space is part of the text.
    Otherwise they are decoded as a text of their own, as `Tokenizer.decode` does, which takes one
    leading space away with tokenizers that add it.

    The work per token depends on its own length and that of the stop strings only.

    `stopped` is the stop string that was found, or None. `num_tokens` counts the tokens up to and
    including the one that completed it. Tokens after it are ignored.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
        continues_text: bool = False,
    ) -> None:
        """Raises LooseleafError when a stop string is empty."""
        if not all(stop):
            raise LooseleafError(
                f"stop is {list(stop)}, which has an empty string; "
                "give each at least one character, or leave it out"
            )
        self.num_tokens = 0
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._min_tokens = min_tokens
        self._drop_space = tokenizer.adds_leading_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The end of the text so far that may be the beginning of a stop string.
        self._held = ""

    def append(self, token_ids: Sequence[int]) -> str:
        """The text that is now certain, after these tokens; "" once stopped."""
        if len(token_ids) == 1:
            return self._append(token_ids[0])
        return "".join([self._append(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """The rest of the text, when no more tokens come; incomplete bytes become U+FFFD."""
        shown = self._advance(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return shown + rest

    def _append(self, token_id: int) -> str:
        if self.stopped is not None:
            return ""
        self.num_tokens += 1
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._advance(self._decoder.decode(data))

    def _advance(self, text: str) -> str:
        """Take in new text; return what can be shown and keep what cannot yet."""
        if self.stopped is not None or not text:
            return ""
        if not self._stop:
            return text
        num_searched = len(self._held)
        text = self._held + text
        if self.num_tokens >= self._min_tokens:
            match = _first_to_end(text, self._stop, num_searched)
            if match is not None:
                start, self.stopped = match
                self._held = ""
                return text[:start] + (self.stopped if self._include_stop else "")
        num_shown = len(text) - _longest_beginning(text, self._stop)
        self._held = text[num_shown:]
        return text[:num_shown]


def completes_stop(tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the last of the tokens completes a stop string; reads as few as that takes."""
    if not stop or not token_ids or tokenizer.is_special(token_ids[-1]):
        return False
    last = tokenizer.token_bytes(token_ids[-1])
    needed = len(last) + max(len(string.encode()) for string in stop)
    before = b""
    for token_id in reversed(token_ids[:-1]):
        if len(before) + len(last) >= needed:
            break
        if not tokenizer.is_special(token_id):
            before = tokenizer.token_bytes(token_id) + before
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    earlier = decoder.decode(before)
    return _first_to_end(earlier + decoder.decode(last), stop, len(earlier)) is not None


def _first_to_end(text: str, stop: Sequence[str], after: int) -> tuple[int, str] | None:
    """Where the first stop string to end beyond `after` starts, and which it is."""
    matches = [
        (start + len(string), start, string)
        for string in stop
        if (start := text.find(string, max(0, after - len(string) + 1))) >= 0
    ]
    if not matches:
        return None
    _, start, string = min(matches)
    return start, string


def _longest_beginning(text: str, stop: Sequence[str]) -> int:
    """The length of the longest end of `text` that begins, but does not complete, a stop string."""
    return max(
        (
            length
            for string in stop
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ),
        default=0,
    )
