"""Tools for models whose chat template knows none: told in the system message, and calls and
results in the turns before written out as text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from looseleaf.text.dialects import Dialect
from looseleaf.text.messages import normalized

_TOOLS = re.compile(r"\btools\b")


def knows_tools(template: str) -> bool:
    return _TOOLS.search(template) is not None


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    dialect: Dialect,
) -> list[dict[str, Any]]:
    """`messages` (which are not modified) with nothing but system, user and assistant in them.

    The results of calls that were made together make one message of the user. Raises TemplateError
    as `normalized` does.
    """
    result: list[dict[str, Any]] = []
    for message in normalized(messages):
        calls = message.pop("tool_calls", None)
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if result and result[-1].get("responds"):
                result[-1]["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text, "responds": True})
        elif calls:
            written = dialect.written([_call(call) for call in calls])
            text = message["content"]
            result.append({**message, "content": f"{text}\n{written}" if text else written})
        else:
            result.append(message)
    for message in result:
        message.pop("responds", None)
    if tools:
        told = _instructions(tools, dialect)
        if result and result[0]["role"] == "system":
            result[0]["content"] = f"{result[0]['content']}\n\n{told}".lstrip()
        else:
            result.insert(0, {"role": "system", "content": told})
    return result


def _call(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return str(function.get("name", "")), function.get("arguments", {})


def _instructions(tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = dialect.written([("NAME", {"ARGUMENT": "VALUE"})])
    return (
        "You can call functions. These are their names and the JSON schemas of their arguments:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, write nothing but its name and its arguments, in this form:\n"
        f"{example}\n"
        "What it returns comes in <tool_response></tool_response>."
    )
