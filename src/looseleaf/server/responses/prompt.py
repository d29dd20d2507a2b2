"""From a request to /v1/responses to the same one for chat completions."""

from typing import Any

from looseleaf.server.errors import invalid
from looseleaf.server.protocol import ChatRequest, JsonSchema, ResponseFormat
from looseleaf.server.responses.protocol import ResponsesRequest, TextOptions

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_LOGPROBS = "message.output_text.logprobs"


def check_supported(fields: ResponsesRequest) -> None:
    if fields.background and not fields.store:
        raise invalid(
            "background needs store: true, because the response must be asked for later",
            "background",
        )
    for name in ("conversation", "prompt"):
        if getattr(fields, name) is not None:
            raise invalid(
                f"{name} is not supported: send what it stands for in input, or go on from a "
                "response with previous_response_id",
                name,
            )


def chat_request(fields: ResponsesRequest, conversation: list[dict[str, Any]]) -> ChatRequest:
    """`conversation` are the messages so far, with those of `fields.input`. Raises ApiError."""
    messages = list(conversation)
    if fields.instructions:
        messages.insert(0, {"role": "system", "content": fields.instructions})
    logprobs = _LOGPROBS in fields.include or bool(fields.top_logprobs)
    return ChatRequest(
        model=fields.model,
        messages=messages,
        max_completion_tokens=fields.max_output_tokens,
        tools=[_tool(index, tool) for index, tool in enumerate(fields.tools)],
        tool_choice=_tool_choice(fields.tool_choice),
        parallel_tool_calls=fields.parallel_tool_calls,
        response_format=_format(fields.text),
        temperature=fields.temperature,
        top_p=fields.top_p,
        logprobs=logprobs,
        top_logprobs=fields.top_logprobs,
        cache_salt=fields.cache_salt,
        priority=fields.priority,
        seed=fields.seed,
        stream=fields.stream,
    )


def input_messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of functions join the assistant's message before them. Raises ApiError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        place = f"input[{index}]"
        match item:
            case {"type": "function_call", "name": str(name), "arguments": str(arguments)}:
                function = {"name": name, "arguments": arguments}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            case {"type": "function_call_output", "call_id": str(call_id)}:
                text = _text(place, item.get("output"))
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case {"type": "reasoning"}:
                pass
            case {"role": str(role)} if item.get("type", "message") == "message":
                messages.append({"role": role, "content": _text(place, item.get("content"))})
            case _:
                raise invalid(
                    f"{place} must be a message with a role, a function_call with its name and "
                    "arguments, a function_call_output with its call_id, or reasoning",
                    "input",
                )
    return messages


def _text(place: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    text = ""
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": str(kind), "text": str(piece)} if kind in _TEXTS:
                text += piece
            case {"type": "refusal", "refusal": str(piece)}:
                text += piece
            case _:
                raise invalid(
                    f"{place} has content that cannot be read here: this model reads text only, "
                    'in parts like {"type": "input_text", "text": "..."}',
                    "input",
                )
    return text


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise invalid(f"tools[{index}].type must be function: no tools run on this server", "tools")
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            allowed = [_tool_choice(tool) if isinstance(tool, dict) else tool for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    return choice


def _format(text: TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    given = text.format
    if given.type == "json_schema":
        if given.schema is None:
            raise invalid("text.format of the type json_schema needs a schema", "text")
        schema = JsonSchema(name=given.name or "", schema=given.schema, strict=given.strict)
        return ResponseFormat(type="json_schema", json_schema=schema)
    if given.type not in ("text", "json_object"):
        raise invalid("text.format.type must be text, json_object or json_schema", "text")
    return ResponseFormat(type=given.type)
