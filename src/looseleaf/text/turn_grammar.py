"""Grammars for replies that must call a function, or call one or else be of some form."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from looseleaf.sampling.params import StructuredOutputs
from looseleaf.text.dialects import Dialect, Function
from looseleaf.text.grammar import JSON_OPTIONS, GrammarError, choices, schema_of
from looseleaf.text.reasoning import BEGIN, END
from looseleaf.text.tokenizer import Tokenizer

MAX_FORCED_CALLS = 16
"""Where a reply must have calls and may have several."""

Thinking = Literal["never", "maybe", "first"]
"""Whether reasoning comes before: `first` where the prompt has begun it."""

# As json.dumps writes it, which is what models have seen.
_COMPACT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def turn_grammar(
    tokenizer: Tokenizer,
    *,
    dialect: Dialect,
    functions: Sequence[Function],
    most: int | None,
    answer: StructuredOutputs | None,
    thinking: Thinking,
) -> str:
    """In Lark's notation: calls of `functions`, at most `most`, or `answer`, if there is one. There
    must be functions or an answer. Raises GrammarError for an answer that `can_be_part` denies."""
    bodies = []
    rules = []
    if functions:
        bodies.append("calls")
        rules += [_calls(tokenizer, dialect, most), *_bodies(dialect, functions)]
    if answer is not None:
        bodies.append("answer")
        rules.append(f"answer: {_answer(answer)}")
    start = f"({' | '.join(bodies)})"
    if thinking != "never":
        thoughts = "thoughts blanks"
        if thinking == "maybe":
            thoughts = f"({_text(BEGIN)} {thoughts})?"
        start = f"{thoughts} {start}"
        rules += [
            f"thoughts[lazy]: /(.|\\n)*{END.replace('/', chr(92) + '/')}/",
            r"blanks: /[ \n]{0,4}/",
        ]
    return "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])


def strict_grammar(dialect: Dialect, functions: Sequence[Function]) -> str:
    """For a model that is free not to call: any text, in which calls are of the functions, and the
    arguments of strict ones of their schema. Only for dialects whose every call has a mark."""
    return "\n".join(
        [
            "%llguidance {}",
            "start: (marked call_rest)* TEXT",
            f"marked[lazy]: TEXT {_text(dialect.marks.opening)}",
            r"TEXT: /(.|\n)*/",
            f"call_rest: {_text(dialect.before.removeprefix(dialect.marks.opening))} body "
            f"{_text(dialect.after)}",
            *_bodies(dialect, functions, all_strict=False),
            "",
        ]
    )


def can_be_strict(dialect: Dialect) -> bool:
    return dialect.name == "hermes"


def can_be_part(asked: StructuredOutputs) -> bool:
    """Whether such an answer can be one of several things that a reply may be."""
    return asked.json is not None or asked.json_object or asked.choice is not None


def _calls(tokenizer: Tokenizer, dialect: Dialect, most: int | None) -> str:
    more = (most or MAX_FORCED_CALLS) - 1
    before, after = _text(dialect.before), _text(dialect.after)
    between = _text(dialect.between)
    opening = dialect.marks.opening
    if dialect.before.startswith(opening):
        before = f"{_mark(tokenizer, opening)} {_text(dialect.before.removeprefix(opening))}"
    if dialect.name == "mistral":
        return f"calls: {before} body {_up_to(more, f'{between} body')} {after}"
    one = f"one_call: {before} body {after}"
    return f"calls: one_call {_up_to(more, f'{between} one_call')}\n{one}"


def _up_to(number: int, rule: str) -> str:
    return f"({rule}){{0,{number}}}" if number else ""


def _mark(tokenizer: Tokenizer, text: str) -> str:
    """The control token of that name, where there is one: its text would be other tokens."""
    token_id = control_token(tokenizer, text)
    return _text(text) if token_id is None else f"<[{token_id}]>"


def control_token(tokenizer: Tokenizer, text: str) -> int | None:
    token_ids = tokenizer.encode(text, add_special=False, parse_special=True)
    if len(token_ids) == 1 and tokenizer.is_special(token_ids[0]):
        return token_ids[0]
    return None


def _bodies(
    dialect: Dialect, functions: Sequence[Function], *, all_strict: bool = True
) -> list[str]:
    rules = [f"body: {' | '.join(f'body_{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        head = f'{{"name": {json.dumps(function.name)}, "{dialect.key}": '
        strict = all_strict or function.strict
        schema = {"type": "object", **function.parameters} if strict else {"type": "object"}
        rules += [
            f"body_{i}: {_text(head)} arguments_{i} {_text('}')}",
            f"arguments_{i}: {_json(schema, _COMPACT)}",
        ]
    return rules


def _answer(asked: StructuredOutputs) -> str:
    if asked.choice is not None:
        return choices(asked.choice)
    if asked.json_object:
        return _json({"type": "object"}, JSON_OPTIONS)
    if asked.json is not None:
        schema = json.loads(schema_of(asked.json))
        return _json(schema if isinstance(schema, dict) else {}, JSON_OPTIONS)
    raise GrammarError(
        "structured_outputs with regex or grammar do not go with tools: leave one of them out"
    )


def _json(schema: dict[str, Any], options: Any) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
