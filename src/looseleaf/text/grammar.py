"""Structured output: grammars over a model's vocabulary, by llguidance.

A grammar is a text that llguidance understands. It says after each token which ones may follow; a
state of it is a `Matcher`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from looseleaf.core.errors import LooseleafError
from looseleaf.sampling.params import StructuredOutputs
from looseleaf.text.tokenizer import Tokenizer

MAX_GRAMMAR_CHARS = 200_000
MAX_CHOICES = 1000
MAX_MESSAGE_CHARS = 300
MAX_LEXER_FUEL = 200_000
"""The expressions that a grammar's states may take, by llguidance's count. Its own limit of a
million lets a mask take a second; schemas of hundreds of properties stay below this one."""


_QUOTED = re.compile(r" *(\d+ \| .*|\^+ *)$")

JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n[ \t]{0,16})?", "coerce_one_of": True}
"""Between the parts of JSON: a space, or a line break and what indents the next line. Small models
that may put any white space there put it there without end. `oneOf` is taken as `anyOf`: a grammar
cannot say "and none of the others", and where the options exclude each other, as those of tagged
unions do, it is the same."""


class GrammarError(LooseleafError):
    """What was asked for is no grammar, or one that cannot be followed."""


class Matcher(Protocol):
    """Where a sequence stands in its grammar."""

    def compute_bitmask(self) -> bytes:
        """A bit for each token that may come next, the lowest bit of the first byte first."""

    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next, whatever is drawn."""

    def deep_copy(self) -> "Matcher": ...

    def is_error(self) -> bool:
        """Whether the grammar was left, or became too costly to follow."""


class Grammars:
    """Grammars over the vocabulary of `tokenizer`. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def compile(self, asked: StructuredOutputs) -> str:
        """The grammar. Raises GrammarError with what is wrong with it."""
        import llguidance

        matcher = llguidance.LLMatcher
        try:
            if asked.json is not None:
                grammar = matcher.grammar_from_json_schema(schema_of(asked.json), JSON_OPTIONS)
            elif asked.json_object:
                grammar = matcher.grammar_from_json_schema({"type": "object"}, JSON_OPTIONS)
            elif asked.regex is not None:
                grammar = matcher.grammar_from_regex(asked.regex)
            elif asked.choice is not None:
                grammar = matcher.grammar_from_lark(f"start: {choices(asked.choice)}")
            else:
                assert asked.grammar is not None
                grammar = matcher.grammar_from_lark(asked.grammar)
        except ValueError as error:
            raise GrammarError(f"structured_outputs: {_short(str(error))}") from None
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise GrammarError(
                f"structured_outputs: the grammar has {len(grammar)} characters, but it may have "
                f"at most {MAX_GRAMMAR_CHARS}"
            )
        wrong = matcher.validate_grammar(grammar, self._vocabulary, limits=self._limits)
        if wrong and not wrong.startswith("WARNING"):
            raise GrammarError(f"structured_outputs: {_short(wrong)}")
        if not _can_be_followed(self.matcher(grammar)):
            raise GrammarError("structured_outputs: the grammar is too complex to be followed")
        return grammar

    def matcher(self, grammar: str) -> Matcher:
        """A sequence's state before its first token. A grammar that cannot be followed is in error
        at once."""
        import llguidance

        made: Matcher = llguidance.LLMatcher(
            self._vocabulary, grammar, log_level=0, limits=self._limits
        )
        return made

    @cached_property
    def _limits(self) -> Any:
        import llguidance

        return llguidance.LLParserLimits(initial_lexer_fuel=MAX_LEXER_FUEL)

    @cached_property
    def _vocabulary(self) -> Any:
        """Built when the first grammar comes: it takes a fifth of a second."""
        import llguidance

        tokenizer = self._tokenizer
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer)),
            n_vocab=tokenizer.vocab_size,
            eos_token=sorted(tokenizer.eos_token_ids) or [tokenizer.vocab_size - 1],
        )


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids, default=tokenizer.vocab_size - 1)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(
            text.decode("utf-8", "replace"), add_special=False, parse_special=False
        )


def _can_be_followed(matcher: Matcher) -> bool:
    """Whether a token may come first, and can be taken: some grammars are only seen to be too
    complex at the first step, which may not be one that others wait for."""
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    if matcher.is_error() or not allowed:
        return False
    lowest = (allowed & -allowed).bit_length() - 1
    return matcher.consume_tokens([lowest]) and not matcher.is_error()


def _short(message: str) -> str:
    """In one line, without the lines of the grammar that llguidance quotes."""
    told = (line for line in message.splitlines() if not _QUOTED.match(line))
    line = " ".join(" ".join(told).split())
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[:MAX_MESSAGE_CHARS]}..."


def schema_of(schema: str | Mapping[str, Any]) -> str:
    """As JSON text. Raises GrammarError."""
    if not isinstance(schema, str):
        return json.dumps(schema)
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"structured_outputs: the schema is not JSON: {error}") from None
    if not isinstance(parsed, dict | bool):
        raise GrammarError("structured_outputs: a schema is a JSON object, true or false")
    return schema


def choices(texts: Sequence[str]) -> str:
    """One of them, in Lark's notation."""
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise GrammarError(
            f"structured_outputs: choice has {len(texts)} texts, but it must have between 1 and "
            f"{MAX_CHOICES}"
        )
    return " | ".join(json.dumps(text) for text in texts)
