"""Chat messages as clients send them, made into what every template can read."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from looseleaf.text.errors import TemplateError

MAX_NAMED_CHARS = 40
"""An unknown role or kind of content is named up to here."""

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalized(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of `messages` (which are not modified) with a known role and a string content.

    Role `developer` becomes `system`. Absent or null content becomes "", a list of text parts
    their concatenation. Arguments of tool calls, JSON text in the OpenAI protocol, become the
    object that templates expect, and no text an empty one; no calls are as if they were not
    mentioned. Other keys are left for the template.

    Raises TemplateError for unknown roles, for content other than text and for tool calls that are
    not a list of objects. What it repeats of a message is short.
    """
    return [_normalized(index, message) for index, message in enumerate(messages)]


def _normalized(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"message {index} is a {type(message).__name__}; it must be an object")
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(
            f"message {index} has role {_brief(role)}; the known roles are {', '.join(ROLES)}"
        )
    result = {
        **message,
        "role": "system" if role == "developer" else role,
        "content": _text(index, message.get("content")),
    }
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = _tool_calls(index, calls)
    return result


def _brief(value: Any) -> str:
    """`value` as an error may name it: an error never carries a client's input back to it."""
    if value is None or (isinstance(value, str) and len(value) <= MAX_NAMED_CHARS):
        return repr(value)
    if isinstance(value, str):
        return repr(f"{value[:MAX_NAMED_CHARS]}...")
    return f"<{type(value).__name__}>"


def _text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(_part_text(index, part) for part in content)
    raise TemplateError(
        f"the content of message {index} is of type {type(content).__name__}; "
        "send a string or a list of text parts"
    )


def _part_text(index: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    for known in ("text", "refusal"):  # OpenAI's assistants may have refused
        if kind == known and isinstance(part.get(known), str):
            return str(part[known])
    raise TemplateError(
        f"message {index} has a content part of type {_brief(kind)}; this model reads text only: "
        'send parts like {"type": "text", "text": "..."}'
    )


def _tool_calls(index: int, calls: Any) -> list[Mapping[str, Any]]:
    if not (isinstance(calls, list | tuple) and all(isinstance(c, Mapping) for c in calls)):
        raise TemplateError(
            f"the tool_calls of message {index} are not a list of objects; send a list of objects "
            'like {"type": "function", "function": {"name": ..., "arguments": ...}}'
        )
    return [_with_argument_object(call) for call in calls]


def _with_argument_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    match call:
        case {"function": {"arguments": str(text), **function}}:
            arguments = json_object(text)
            if arguments is not None:
                return {**call, "function": {**function, "arguments": arguments}}
    return call


def json_object(text: str) -> dict[str, Any] | None:
    """The arguments of a call; of no text, an empty object. None for what is no JSON object: a
    model may have written broken JSON in its turn, and JSON that is nested too deeply is as good as
    broken."""
    try:
        value = json.loads(text.strip() or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
