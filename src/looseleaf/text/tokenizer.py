"""Text to token ids and back, built from the metadata of a GGUF file."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import AddedToken

from looseleaf.text.byte_level import byte_level
from looseleaf.text.errors import TokenizerError
from looseleaf.text.scheme import Scheme
from looseleaf.text.sentencepiece import sentencepiece
from looseleaf.text.vocabulary import TokenType, Vocabulary, setting

_KINDS = {"gpt2": byte_level, "llama": sentencepiece}

_SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL)

# Chat models end a turn with a token that their file often forgets to declare.
_END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    }
)


class Tokenizer:
    """Immutable after construction and safe to share between threads.

    `bos_token_id` is None when the model has none. `eos_token_ids` are all ids that end a reply:
    those the file declares (end of sequence, of turn, of message) and the control tokens whose
    name is a well-known end of turn. `add_bos` and `add_eos` are the model's own rule for
    `encode(add_special=True)`. With `adds_leading_space`, a SentencePiece habit, `encode` puts a
    space before the text and `decode` takes one away.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scheme: Scheme,
        *,
        bos_token_id: int | None,
        eos_token_id: int | None,
        eos_token_ids: frozenset[int],
        add_bos: bool,
        add_eos: bool,
    ) -> None:
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.eos_token_ids = eos_token_ids
        self._bos = [bos_token_id] if add_bos and bos_token_id is not None else []
        self._eos = [eos_token_id] if add_eos and eos_token_id is not None else []
        self.add_bos = bool(self._bos)
        self.add_eos = bool(self._eos)
        self.adds_leading_space = scheme.adds_leading_space
        self._vocabulary = vocabulary
        self._piece_bytes = scheme.piece_bytes
        self._special = frozenset(vocabulary.ids_of(*_SPECIAL_TYPES))
        self._known_bytes: dict[int, bytes] = {}
        # Two front ends on one model rather than one with a switch: a switch is shared state.
        always = vocabulary.of_types(TokenType.USER_DEFINED)
        special = vocabulary.of_types(*_SPECIAL_TYPES)
        self._plain = _front_end(scheme, always)
        self._parsing = _front_end(scheme, [*always, *special])

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """Build from the `tokenizer.ggml.*` keys; values may be lists or NumPy arrays.

        Raises TokenizerError for an unknown kind of tokenizer or pre-tokenizer, and for arrays
        that do not fit each other.
        """
        kind = setting(metadata, "model")
        build_scheme = _KINDS.get(kind)
        if build_scheme is None:
            raise TokenizerError(
                f"tokenizer kind {kind!r} is not supported; supported are {', '.join(_KINDS)}"
            )
        vocabulary = Vocabulary.from_gguf(metadata)
        scheme = build_scheme(vocabulary, metadata)
        declared = {
            vocabulary.token_id(metadata, name)
            for name in ("eos_token_id", "eot_token_id", "eom_token_id")
        }
        named = {
            token_id
            for token_id in vocabulary.ids_of(TokenType.CONTROL)
            if vocabulary.tokens[token_id] in _END_OF_TURN
        }
        return cls(
            vocabulary,
            scheme,
            bos_token_id=vocabulary.token_id(metadata, "bos_token_id"),
            eos_token_id=vocabulary.token_id(metadata, "eos_token_id"),
            eos_token_ids=frozenset(named | {i for i in declared if i is not None}),
            add_bos=bool(setting(metadata, "add_bos_token", scheme.adds_bos)),
            add_eos=bool(setting(metadata, "add_eos_token", False)),
        )

    def save(self, path: Path) -> None:
        """Write it as Hugging Face's `tokenizer.json`, in which special tokens are parsed."""
        self._parsing.save(str(path))

    @property
    def vocab_size(self) -> int:
        """How many ids have a token; the model's output layer may have more rows."""
        return len(self._vocabulary)

    @cached_property
    def longest_token_bytes(self) -> int:
        """No token covers more of a text than so many bytes."""
        return max(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The token ids of `text`.

        `parse_special`: text that spells a control token (`<|im_start|>`) becomes that token;
        otherwise it is plain text like any other, which is what untrusted text needs.
        User-defined tokens match in either case.

        `add_special` adds the beginning and end tokens where the model's rule asks for them, and
        never a second one: a chat template that already wrote the BOS text, encoded with
        `parse_special`, keeps its one. With `parse_special=False` that text is plain, so BOS is
        added before it.

        Raises TokenizerError when `text` holds a lone surrogate, which no UTF-8 text can.
        """
        ids = self._encoding(text, parse_special).ids
        if add_special:
            bos, eos = self._missing(ids)
            ids = bos + ids + eos
        return ids

    def encode_with_offsets(
        self, text: str, *, add_special: bool, parse_special: bool
    ) -> tuple[list[int], list[int]]:
        """What `encode` gives, and for each token where in `text` it starts, in characters.

        The bytes of one character all start where it does. A token that was added starts at the
        beginning or the end; neither takes any text.
        """
        encoding = self._encoding(text, parse_special)
        ids, starts = encoding.ids, [start for start, _ in encoding.offsets]
        if add_special:
            bos, eos = self._missing(ids)
            ids = bos + ids + eos
            starts = [0] * len(bos) + starts + [len(text)] * len(eos)
        return ids, starts

    def encode_chat(self, prompt: str) -> list[int]:
        """The token ids of a rendered chat template, which spells its special tokens itself.

        BOS is added where the model's rule asks for it and the template did not write it. The end
        token that some models add to a text never is: the answer goes on from the prompt.

        Raises TokenizerError as `encode` does.
        """
        ids = self._encoding(prompt, parse_special=True).ids
        bos, _ = self._missing(ids)
        return bos + ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 become U+FFFD, unknown ids nothing.

        `skip_special` leaves out control tokens. At most one leading space is taken away, and
        only when `adds_leading_space`.
        """
        data = b"".join(
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special and self.is_special(token_id))
        )
        if self.adds_leading_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text, part of a UTF-8 character perhaps.

        A control token gives its name. Ids outside the vocabulary and unused ones give b"": a
        model with more output rows than tokens may produce them.
        """
        known = self._known_bytes.get(token_id)
        if known is not None:
            return known
        token = self.token_str(token_id)
        if not token:
            return b""
        data = self._known_bytes[token_id] = self._bytes_of(token, token_id)
        return data

    def _bytes_of(self, token: str, token_id: int) -> bytes:
        kind = self._vocabulary.types[token_id]
        if kind == TokenType.NORMAL:
            return self._piece_bytes(token)
        if kind == TokenType.BYTE:
            return bytes.fromhex(token[3:5])  # spelled <0xE2>
        return b"" if kind == TokenType.UNUSED else token.encode()

    def token_str(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token (`Ġthe`, `▁the`); "" for unknown ids."""
        return self._vocabulary.tokens[token_id] if 0 <= token_id < self.vocab_size else ""

    def _encoding(self, text: str, parse_special: bool) -> tokenizers.Encoding:
        _check_utf8(text)
        front_end = self._parsing if parse_special else self._plain
        return front_end.encode(text, add_special_tokens=False)

    def _missing(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """What the model's rule puts before and after `ids`, and is not there already."""
        return (
            self._bos if ids[:1] != self._bos else [],
            self._eos if ids[-1:] != self._eos else [],
        )

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control (or the unknown) token, which `decode` leaves out."""
        return token_id in self._special


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at position "
            f"{error.start}, which UTF-8 cannot hold; remove it or send the whole character"
        ) from error


def _front_end(scheme: Scheme, whole_tokens: Iterable[str]) -> tokenizers.Tokenizer:
    """A tokenizer on the scheme's model that takes each of `whole_tokens` in one piece."""
    front_end = tokenizers.Tokenizer(scheme.model)
    if scheme.normalizer is not None:
        front_end.normalizer = scheme.normalizer
    if scheme.pre_tokenizer is not None:
        front_end.pre_tokenizer = scheme.pre_tokenizer
    front_end.add_tokens([AddedToken(token, normalized=False) for token in whole_tokens])
    return front_end
