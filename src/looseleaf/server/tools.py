"""The tools of a request: checked, and what they ask of the reply."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looseleaf.server.errors import invalid
from looseleaf.text.dialects import Function

MAX_TOOLS = 128
MAX_NAME_CHARS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the model may call: `tools` are as they came, for the template, and `functions` those
    among them that it may call in this turn. `most` calls, and at least one if `forced`."""

    tools: list[dict[str, Any]]
    functions: tuple[Function, ...]
    forced: bool
    most: int | None


def tool_use(
    tools: list[dict[str, Any]], choice: str | dict[str, Any] | None, *, parallel: bool
) -> ToolUse | None:
    """None where nothing may be called. Raises ApiError."""
    functions = _functions(tools)
    if not functions:
        if choice in (None, "none", "auto"):
            return None
        raise invalid("tool_choice asks for a call, but there are no tools", "tool_choice")
    most = None if parallel else 1
    match choice:
        case "none":
            return None
        case None | "auto" | "required":
            return ToolUse(tools, functions, choice == "required", most)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolUse(tools, _named(functions, [name]), True, 1)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)},
        }:
            names = [_name_in(tool) for tool in allowed]
            return ToolUse(tools, _named(functions, names), mode == "required", most)
    raise invalid(
        'tool_choice must be "none", "auto", "required", or an object like {"type": "function", '
        '"function": {"name": ...}}',
        "tool_choice",
    )


def _name_in(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise invalid(
        'tool_choice: each of the allowed tools must be like {"type": "function", "function": '
        '{"name": ...}}',
        "tool_choice",
    )


def _named(functions: tuple[Function, ...], names: list[str]) -> tuple[Function, ...]:
    """Names that do not exist are not repeated to the client."""
    known = {function.name: function for function in functions}
    if not names or not all(name in known for name in names):
        raise invalid(
            "tool_choice names a function that is not among the tools: use the name of one of them",
            "tool_choice",
        )
    return tuple(known[name] for name in dict.fromkeys(names))


def _functions(tools: list[dict[str, Any]]) -> tuple[Function, ...]:
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools has {len(tools)} tools, but it may have at most {MAX_TOOLS}", "tools")
    functions = tuple(_function(i, tool) for i, tool in enumerate(tools))
    if len({function.name for function in functions}) < len(functions):
        raise invalid("tools has two functions of one name: each needs its own", "tools")
    return functions


def _function(index: int, tool: Mapping[str, Any]) -> Function:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise invalid(
            f'tools[{index}] must be like {{"type": "function", "function": {{"name": ..., '
            '"parameters": ...}}: functions are the only kind of tool here',
            "tools",
        )
    name, parameters = function.get("name"), function.get("parameters")
    if not (isinstance(name, str) and len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name)):
        raise invalid(
            f"tools[{index}].function.name must have between 1 and {MAX_NAME_CHARS} letters, "
            "digits, underscores, dots and dashes",
            "tools",
        )
    if not isinstance(function.get("description"), str | None):
        raise invalid(f"tools[{index}].function.description must be a text", "tools")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise invalid(f"tools[{index}].function.strict must be true or false", "tools")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise invalid(
            f'tools[{index}].function.parameters must be a JSON schema of the type "object"',
            "tools",
        )
    return Function(name, parameters, bool(strict))
