"""How models write tool calls: four ways, under vLLM's names.

dialect       a call of f with a=1
-----------   ----------------------------------------------------------
hermes        <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
llama3_json   {"name": "f", "parameters": {"a": 1}}
mistral       [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
pythonic      [f(a=1)]
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from looseleaf.text.call_replies import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    CallRules,
    MarkedCalls,
    Marks,
    mistral_id,
    openai_id,
)
from looseleaf.text.pythonic import PythonicCalls
from looseleaf.text.reply import ReplyParser


@dataclass(frozen=True, slots=True)
class Function:
    """What a model may call. `parameters` is a JSON schema of an object; with `strict`, arguments
    must be of it even where the model is free not to call."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """`marks` are those of calls in JSON. A forced call is in JSON whatever the dialect: so it can
    be held to a schema."""

    name: str
    marks: Marks
    before: str = ""
    between: str = ""
    after: str = ""
    key: str = "arguments"
    new_id: Callable[[], str] = openai_id

    def parser(self, rules: CallRules, *, forced: bool = False) -> ReplyParser:
        if self.name == "pythonic" and not forced:
            return PythonicCalls(rules)
        return MarkedCalls(self.marks, rules)

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Names and arguments as a model would write them."""
        if self.name == "pythonic":
            return "[" + ", ".join(f"{name}({_keywords(given)})" for name, given in calls) + "]"
        bodies = [
            json.dumps({"name": name, self.key: given}, ensure_ascii=False) for name, given in calls
        ]
        if self.name == "mistral":
            return f"{self.before}{', '.join(bodies)}{self.after}"
        return self.between.join(f"{self.before}{body}{self.after}" for body in bodies)


def _keywords(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return ""
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (
            Dialect("hermes", HERMES, "<tool_call>\n", "\n", "\n</tool_call>"),
            Dialect("llama3_json", LLAMA3_JSON, between="; ", key="parameters"),
            Dialect("mistral", MISTRAL, "[TOOL_CALLS][", ", ", "]", new_id=mistral_id),
            Dialect("pythonic", LLAMA3_JSON, between="; ", key="parameters"),
        )
    }
)

# What tells a template's dialect, the first that is in it.
_SIGNS = (
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("ipython", "llama3_json"),
)


def dialect_of(template: str) -> Dialect:
    """The one that a chat template writes calls in, by the marks that stand in it; hermes where
    there are none, which is also what models are told to write whose template knows no tools."""
    return DIALECTS[next((name for sign, name in _SIGNS if sign in template), "hermes")]
