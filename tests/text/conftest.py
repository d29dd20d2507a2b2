"""Tiny vocabularies in the form a GGUF file has them, so that no test here needs a model."""

from collections.abc import Sequence
from typing import Any

import pytest

from looseleaf.text.tokenizer import Tokenizer
from looseleaf.text.vocabulary import TokenType


def _byte_characters() -> list[str]:
    """GPT-2's character for each byte, computed the way the original script does."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    codes, shifted = {byte: byte for byte in kept}, 0
    for byte in range(256):
        if byte not in codes:
            codes[byte] = 256 + shifted
            shifted += 1
    return [chr(codes[byte]) for byte in range(256)]


def _metadata(pieces: Sequence[tuple[str, TokenType]], **settings: Any) -> dict[str, Any]:
    arrays = {"tokens": [p for p, _ in pieces], "token_type": [int(kind) for _, kind in pieces]}
    return {f"tokenizer.ggml.{key}": value for key, value in (arrays | settings).items()}


@pytest.fixture(scope="session")
def byte_level_metadata() -> dict[str, Any]:
    """Ids 0-255 are the bytes; then some merges, a user-defined token and control tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ hello", "1 2", "12 3"]
    pieces = [(character, TokenType.NORMAL) for character in _byte_characters()]
    pieces += [(merge.replace(" ", ""), TokenType.NORMAL) for merge in merges]
    pieces += [
        ("<tab> ", TokenType.USER_DEFINED),
        ("<|bos|>", TokenType.CONTROL),
        ("<|im_end|>", TokenType.CONTROL),
        ("[PAD]", TokenType.UNUSED),
    ]
    return _metadata(
        pieces,
        model="gpt2",
        pre="gpt-2",
        merges=merges,
        bos_token_id=265,
        eos_token_id=266,
        add_bos_token=True,
    )


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    """Control tokens, the 256 bytes, letters, then pieces with the best score first."""
    pieces = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)]
    pieces += [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    joined = ["▁l", "▁le", "ad", "in", "▁lead", "ing", "▁leading", "▁x", "<s", "aa", "aaa"]
    pieces += [(piece, TokenType.NORMAL) for piece in [*joined, *"▁leadingxs<>/"]]
    pieces += [("\n\n", TokenType.USER_DEFINED)]
    return _metadata(
        pieces,
        model="llama",
        pre="default",
        scores=[-float(token_id) for token_id in range(len(pieces))],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    )


@pytest.fixture(scope="session")
def tokenizer(byte_level_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata)


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(sentencepiece_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata)
