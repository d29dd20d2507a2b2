"""Log-probabilities in the two forms that OpenAI's API has for them. Finite, as they come."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from looseleaf.core.step import TokenLogprobs, Top
from looseleaf.server.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from looseleaf.text.tokenizer import Tokenizer


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    *,
    as_ids: bool = False,
) -> ChatLogprobs:
    """One entry for each token, whether or not it shows in the text; `as_ids` names them so."""
    return ChatLogprobs(
        content=[
            _chat_entry(tokenizer, token_id, entry, as_ids)
            for token_id, entry in zip(token_ids, logprobs, strict=True)
            if entry is not None
        ]
    )


def _chat_entry(
    tokenizer: Tokenizer, token_id: int, entry: TokenLogprobs, as_ids: bool
) -> TokenLogprob:
    def spelt(token_id: int, data: bytes) -> str:
        return _as_id(token_id) if as_ids else data.decode(errors="replace")

    data = tokenizer.token_bytes(token_id)
    top = []
    for other, logprob in entry.top:
        other_data = tokenizer.token_bytes(other)
        top.append(
            TopLogprob(
                token=spelt(other, other_data),
                logprob=logprob,
                bytes=list(other_data),
            )
        )
    return TokenLogprob(
        token=spelt(token_id, data),
        logprob=entry.logprob,
        bytes=list(data),
        top_logprobs=top,
    )


def _as_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def token_name(tokenizer: Tokenizer, token_id: int, as_ids: bool = False) -> str:
    """A token as text; a part of a character as `bytes:\\xf0\\x9f`, so that no two look alike."""
    if as_ids:
        return _as_id(token_id)
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as the answer repeats it, and where in that text each of its tokens starts.

    `offsets` are empty if they were not asked for.
    """

    text: str
    offsets: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, token_ids: Sequence[int], skip_special: bool) -> Self:
        """The text of `token_ids` as `decode` gives it."""
        decoder, text, offsets = _decoder(), "", []
        drop_space = tokenizer.adds_leading_space
        for token_id in token_ids:
            offsets.append(len(text))
            if skip_special and tokenizer.is_special(token_id):
                continue
            data = tokenizer.token_bytes(token_id)
            if drop_space and data:
                data, drop_space = data.removeprefix(b" "), False
            text += decoder.decode(data)
        return cls(text + decoder.decode(b"", final=True), offsets)


def prompt_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    top: Sequence[Top],
    offsets: Sequence[int],
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """The lists of an echoed prompt. Nothing comes before the first token, so it has no
    log-probability. `top` is empty if it was not asked for."""
    result = _empty()
    values = [None, *map(TokenLogprobs, logprobs, top or [()] * len(logprobs))]
    for token_id, entry, offset in zip(token_ids, values, offsets, strict=True):
        _add(result, tokenizer, token_id, entry, offset, as_ids)
    return result


class CompletionLogprobsWriter:
    """The lists of one choice of /v1/completions, piece by piece.

    `text_offset` counts characters of the choice's text before the token; the first `offset` of
    them are those of the prompt, if it is echoed.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool, offset: int = 0, as_ids: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._skip_special = skip_special
        self._decoder = _decoder()
        self._offset = offset

    def output(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        result = _empty()
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            _add(result, self._tokenizer, token_id, entry, self._offset, self._as_ids)
            if not (self._skip_special and self._tokenizer.is_special(token_id)):
                data = self._tokenizer.token_bytes(token_id)
                self._offset += len(self._decoder.decode(data))
        return result


def _add(
    result: CompletionLogprobs,
    tokenizer: Tokenizer,
    token_id: int,
    entry: TokenLogprobs | None,
    offset: int,
    as_ids: bool,
) -> None:
    name = token_name(tokenizer, token_id, as_ids)
    result.tokens.append(name)
    result.text_offset.append(offset)
    if entry is None:
        result.token_logprobs.append(None)
        result.top_logprobs.append(None)
        return
    result.token_logprobs.append(entry.logprob)
    top = {token_name(tokenizer, i, as_ids): logprob for i, logprob in entry.top}
    top.setdefault(name, entry.logprob)
    result.top_logprobs.append(top)


def _empty() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
