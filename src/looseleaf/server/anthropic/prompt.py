"""From a request in Anthropic's form to the same one in OpenAI's."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from looseleaf.server.anthropic.protocol import (
    Message,
    MessagesRequest,
    OutputConfig,
    PromptFields,
    Tool,
)
from looseleaf.server.errors import invalid
from looseleaf.server.protocol import ChatRequest, JsonSchema, ResponseFormat

_THOUGHTS = ("thinking", "redacted_thinking")


def chat_request(fields: PromptFields) -> ChatRequest:
    """An assistant's message at the end is continued. Raises ApiError."""
    messages = _system(fields.system)
    for index, message in enumerate(fields.messages):
        messages += _converted(index, message)
    choice, parallel = _tool_choice(fields)
    chat = ChatRequest(
        model=fields.model,
        messages=messages,
        tools=[_tool(index, tool) for index, tool in enumerate(fields.tools)],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_format(fields.output_config),
        continue_final_message=bool(fields.messages) and fields.messages[-1].role == "assistant",
    )
    if isinstance(fields, MessagesRequest):
        if fields.max_tokens < 1:
            raise invalid(f"max_tokens is {fields.max_tokens}, but must be at least 1")
        chat.max_tokens = fields.max_tokens
        chat.stop = fields.stop_sequences
        chat.temperature = fields.temperature
        chat.top_p = fields.top_p
        chat.top_k = fields.top_k
        chat.cache_salt = fields.cache_salt
        chat.stream = fields.stream
    return chat


def _format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    if config.format.type != "json_schema" or config.format.schema is None:
        raise invalid("output_config.format must have the type json_schema, and a schema")
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=config.format.schema))


def _system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if not system:
        return []
    text = system if isinstance(system, str) else _text("system", system)
    return [{"role": "system", "content": text}]


def _converted(index: int, message: Message) -> list[dict[str, Any]]:
    place = f"messages[{index}]"
    content = message.content
    if message.role not in ("user", "assistant"):
        raise invalid(f"{place}.role must be user or assistant; instructions go into system")
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    convert = _user_blocks if message.role == "user" else _assistant_blocks
    return convert(place, content)


def _user_blocks(place: str, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each result of a tool is a message of its own, and so is the text between them."""
    found: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                content = block.get("content") or ""
                text = content if isinstance(content, str) else _text(place, content)
                found.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case _:
                text = _text(place, [block])
                if found and found[-1]["role"] == "user":
                    found[-1]["content"] += text
                else:
                    found.append({"role": "user", "content": text})
    return found or [{"role": "user", "content": ""}]


def _assistant_blocks(place: str, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    text, calls = "", []
    for block in blocks:
        match block:
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)}:
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case {"type": str(kind)} if kind in _THOUGHTS:
                pass
            case _:
                text += _text(place, [block])
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return [{**message, "tool_calls": calls} if calls else message]


def _text(place: str, blocks: Any) -> str:
    if not isinstance(blocks, Iterable):
        raise invalid(f"{place} must have a text or a list of blocks as its content")
    text = ""
    for block in blocks:
        match block:
            case {"type": "text", "text": str(piece)}:
                text += piece
            case _:
                raise invalid(
                    f"{place} has a block that cannot be read here: this model reads text only, "
                    "in blocks of the types text, tool_use and tool_result with all their fields"
                )
    return text


def _tool(index: int, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise invalid(f"tools[{index}].type must be custom: no tools run on this server")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_schema is not None:
        function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(fields: PromptFields) -> tuple[str | dict[str, Any] | None, bool]:
    """OpenAI's choice, and whether several tools may be called at once."""
    choice = fields.tool_choice
    if choice is None:
        return None, True
    parallel = not choice.disable_parallel_tool_use
    simple = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type in simple:
        return simple[choice.type], parallel
    if choice.type == "tool" and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}, parallel
    raise invalid("tool_choice.type must be auto, any, none, or tool with a name")
