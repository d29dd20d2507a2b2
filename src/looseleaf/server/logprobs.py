"""Log-probabilities in the two forms that OpenAI's API has for them."""

import codecs
from collections.abc import Sequence

from looseleaf.core.step import TokenLogprobs
from looseleaf.server.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from looseleaf.text.tokenizer import Tokenizer

FLOOR = -9999.0
"""In place of what JSON cannot hold: minus infinity, and not-a-number."""


def finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> ChatLogprobs:
    """One entry for each token, whether or not it shows in the text."""
    return ChatLogprobs(
        content=[
            _chat_entry(tokenizer, token_id, entry)
            for token_id, entry in zip(token_ids, logprobs, strict=False)
            if entry is not None
        ]
    )


def _chat_entry(tokenizer: Tokenizer, token_id: int, entry: TokenLogprobs) -> TokenLogprob:
    data = tokenizer.token_bytes(token_id)
    top = []
    for other, logprob in entry.top:
        other_data = tokenizer.token_bytes(other)
        top.append(
            TopLogprob(
                token=other_data.decode(errors="replace"),
                logprob=finite(logprob),
                bytes=list(other_data),
            )
        )
    return TokenLogprob(
        token=data.decode(errors="replace"),
        logprob=finite(entry.logprob),
        bytes=list(data),
        top_logprobs=top,
    )


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; a part of a character as `bytes:\\xf0\\x9f`, so that no two look alike."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionLogprobsWriter:
    """The lists of one choice of /v1/completions, piece by piece.

    `text_offset` counts characters of the choice's text before the token, that of the prompt
    included if it is echoed.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def prompt(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> CompletionLogprobs:
        """Nothing comes before the first token, so it has no log-probability."""
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        values = [None, *logprobs]
        for token_id, value in zip(token_ids, values, strict=False):
            logprob = None if value is None else TokenLogprobs(value)
            self._add(result, token_id, logprob)
        return result

    def output(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, logprobs, strict=False):
            self._add(result, token_id, entry)
        return result

    def _add(self, result: CompletionLogprobs, token_id: int, entry: TokenLogprobs | None) -> None:
        name = token_name(self._tokenizer, token_id)
        result.tokens.append(name)
        result.text_offset.append(self._offset)
        if entry is None:
            result.token_logprobs.append(None)
            result.top_logprobs.append(None)
        else:
            result.token_logprobs.append(finite(entry.logprob))
            top = {token_name(self._tokenizer, i): finite(value) for i, value in entry.top}
            top.setdefault(name, finite(entry.logprob))
            result.top_logprobs.append(top)
        if not (self._skip_special and self._tokenizer.is_special(token_id)):
            data = self._tokenizer.token_bytes(token_id)
            self._offset += len(self._decoder.decode(data))
