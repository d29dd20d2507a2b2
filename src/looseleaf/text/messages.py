"""Chat messages as clients send them, made into what every template can read."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from looseleaf.text.errors import TemplateError

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalized(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of `messages` (which are not modified) with a known role and a string content.

    Role `developer` becomes `system`. Absent or null content becomes "", a list of text parts
    their concatenation. Arguments of tool calls, JSON text in the OpenAI protocol, become the
    object that templates expect. Other keys are left for the template.

    Raises TemplateError for unknown roles and for content other than text.
    """
    return [_normalized(index, message) for index, message in enumerate(messages)]


def _normalized(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(
            f"message {index} has role {role!r}; the known roles are {', '.join(ROLES)}"
        )
    result = {
        **message,
        "role": "system" if role == "developer" else role,
        "content": _text(index, message.get("content")),
    }
    if message.get("tool_calls"):
        result["tool_calls"] = [_with_argument_object(call) for call in message["tool_calls"]]
    return result


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
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateError(
        f"message {index} has a content part of type {kind!r}; this model reads text only: "
        'send parts like {"type": "text", "text": "..."}'
    )


def _with_argument_object(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(text), **function}}:
            arguments = _object_or_none(text)
            if arguments is not None:
                return {**call, "function": {**function, "arguments": arguments}}
    return call


def _object_or_none(text: str) -> dict[str, Any] | None:
    """None for anything but a JSON object: a model may have written broken JSON in its turn."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
