"""Byte-level BPE, GGUF kind `gpt2`: text is cut by regular expressions, then its bytes merged.

Where every byte has a token, any text round-trips exactly; Unicode is never normalized. A byte
without one is left out: SmolLM2 lacks six control characters and the first byte of some
characters that Unicode has not assigned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from looseleaf.text.errors import TokenizerError
from looseleaf.text.scheme import Scheme, build_bpe
from looseleaf.text.vocabulary import Vocabulary, setting, setting_list

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """The cl100k family: contractions, words with one leading sign, runs of `digits`, signs."""
    return (
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    )


def _cased_words(suffixes: str, digits: str) -> str:
    """The o200k family: like `_words`, but a new word starts where lower case turns to upper."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"{lead}{upper}*{lower}+{suffixes}|{lead}{upper}+{lower}*{suffixes}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
    )


@dataclass(frozen=True)
class _Family:
    """`splits` are applied one after the other, each inside the pieces the former left.

    `ignore_merges`: a piece that is a token as a whole is taken before any merge is tried.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2_WORDS = _Family((_GPT2,))
_SINGLE_DIGITS = _Family((r"\p{N}", _GPT2))
_LLAMA3 = _Family((_words(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_QWEN2 = _Family((_words(r"\p{N}"),))

_FAMILIES = {
    "default": _GPT2_WORDS,
    "gpt-2": _GPT2_WORDS,
    "mpt": _GPT2_WORDS,
    "olmo": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "dbrx": _Family(_LLAMA3.splits),
    "smaug-bpe": _Family(_LLAMA3.splits),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _Family((_cased_words(f"{_SUFFIXES}?", r"\p{N}{1,3}"),)),
    "tekken": _Family((_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
}


def byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Scheme:
    """Raises TokenizerError for an unknown `pre` or missing merges."""
    pre = setting(metadata, "pre", "default")
    family = _FAMILIES.get(pre)
    if family is None:
        raise TokenizerError(
            f"pre-tokenizer {pre!r} is not supported; supported are {', '.join(sorted(_FAMILIES))}"
        )
    merges = setting_list(metadata, "merges")
    if not merges:
        raise TokenizerError(
            "the model file has no tokenizer.ggml.merges, which byte-level BPE needs; "
            "convert the model again with a recent converter"
        )
    return Scheme(
        model=build_bpe(
            vocabulary.ids_by_token(),
            [tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=family.ignore_merges,
        ),
        piece_bytes=_piece_bytes,
        pre_tokenizer=_pre_tokenizer(family),
        adds_bos=family.adds_bos,
    )


def _pre_tokenizer(family: _Family) -> PreTokenizer:
    splits = [Split(Regex(pattern), behavior="isolated") for pattern in family.splits]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the rest from U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_of_character()


def _piece_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:  # a token that was added later is spelled in plain text
        return piece.encode()
