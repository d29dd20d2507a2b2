"""The tokens of a model as a GGUF file lists them, before any rule of how text is cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from looseleaf.text.errors import TokenizerError

_PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def setting(metadata: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value of `tokenizer.ggml.<name>`, or `default` when the file does not have it."""
    return metadata.get(_PREFIX + name, default)


def setting_list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    """The array `tokenizer.ggml.<name>` as a list of plain Python values; empty when absent."""
    values = setting(metadata, name)
    if values is None:
        return []
    # NumPy scalars hash and compare slowly, and the Rust side takes none: convert in one go.
    return list(values.tolist() if hasattr(values, "tolist") else values)


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and types by id.

    `tokens[i]` is the token's spelling in the file: byte-level vocabularies spell a space `Ġ`,
    SentencePiece ones `▁`; control and user-defined tokens are spelled as they are.
    """

    tokens: list[str]
    types: list[int]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """Raises TokenizerError when there are no tokens, or not one type for each."""
        tokens = setting_list(metadata, "tokens")
        if not tokens:
            raise TokenizerError(
                f"the model file has no {_PREFIX}tokens; use a GGUF that carries its tokenizer"
            )
        types = setting_list(metadata, "token_type") or [int(TokenType.NORMAL)] * len(tokens)
        if len(types) != len(tokens):
            raise TokenizerError(
                f"{_PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens; "
                "the file is damaged: fetch or convert it again"
            )
        return cls(tokens, types)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _types(self) -> NDArray[Any]:
        return np.array(self.types)

    def ids_by_token(self) -> dict[str, int]:
        return dict(zip(self.tokens, range(len(self)), strict=True))

    def ids_of(self, *types: TokenType) -> list[int]:
        """The ids of all tokens of these types, in order."""
        found: list[int] = np.flatnonzero(np.isin(self._types, list(map(int, types)))).tolist()
        return found

    def of_types(self, *types: TokenType) -> list[str]:
        """The non-empty texts of all tokens of these types, in the order of their ids."""
        return [token for i in self.ids_of(*types) if (token := self.tokens[i])]

    def token_id(self, metadata: Mapping[str, Any], name: str) -> int | None:
        """The id that `tokenizer.ggml.<name>` points at; None when absent.

        Raises TokenizerError when it points outside the vocabulary.
        """
        value = setting(metadata, name)
        if value is None:
            return None
        if not 0 <= int(value) < len(self):
            raise TokenizerError(
                f"{_PREFIX}{name} is {value}, but the vocabulary has ids 0 to {len(self) - 1}; "
                "the file is damaged: fetch or convert it again"
            )
        return int(value)
