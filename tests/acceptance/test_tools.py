"""Tools with the real model and the official client: its template knows none, so they are told in
the system message."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from serving import MODEL, SECONDS, Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Rome", "Oslo", "Lima"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"enum": ["UTC", "CET"]}},
                "required": ["zone"],
                "additionalProperties": False,
            },
        },
    },
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = {"role": "user", "content": "How is the weather in Rome over the next three days?"}


@pytest.fixture(scope="module")
def client(model_server: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="none", timeout=SECONDS) as made:
        yield made


def calls_of(client: OpenAI, stream: bool, **more: Any) -> tuple[list[tuple[str, str]], str | None]:
    """Names and arguments, and the finish reason."""
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [QUESTION],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 200,
        **more,
    }
    if not stream:
        (choice,) = client.chat.completions.create(**fields).choices
        assert choice.message.content is None
        made = choice.message.tool_calls or []
        return [(c.function.name, c.function.arguments) for c in made], choice.finish_reason
    calls: list[list[str]] = []
    reason = None
    for chunk in client.chat.completions.create(**fields, stream=True):
        (choice,) = chunk.choices
        assert not choice.delta.content
        for piece in choice.delta.tool_calls or []:
            if piece.id:
                calls.append([piece.function.name, ""])
            calls[piece.index][1] += piece.function.arguments
        reason = choice.finish_reason or reason
    return [(name, arguments) for name, arguments in calls], reason


def check(name: str, arguments: str) -> None:
    """That the arguments are of the schema."""
    value = json.loads(arguments)
    if name == "get_weather":
        assert set(value) == {"city", "days"}
        assert value["city"] in ("Rome", "Oslo", "Lima")
        assert 1 <= value["days"] <= 7
    else:
        assert name == "get_time"
        assert value in ({"zone": "UTC"}, {"zone": "CET"})


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_call(client: OpenAI, stream: bool) -> None:
    ((name, arguments),), reason = calls_of(client, stream, tool_choice=NAMED)
    assert (name, reason) == ("get_weather", "tool_calls")
    check(name, arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call(client: OpenAI, stream: bool) -> None:
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    ((name, arguments),), reason = calls_of(client, stream, **more)
    assert reason == "tool_calls"
    check(name, arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_its_own_accord(client: OpenAI, stream: bool) -> None:
    """Small as it is, the model does again what it finds that it did before."""
    earlier: list[Any] = []
    for city in ("Oslo", "Lima"):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city, "days": 2})}
        call = {"id": f"call_{city}", "type": "function", "function": function}
        earlier += [
            {"role": "user", "content": f"How is the weather in {city} over the next two days?"},
            {"role": "assistant", "tool_calls": [call]},
        ]
    more = {"tool_choice": "auto", "messages": [*earlier, QUESTION]}
    ((name, arguments),), reason = calls_of(client, stream, **more)
    assert (name, reason) == ("get_weather", "tool_calls")
    check(name, arguments)


def test_a_conversation_with_a_result(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": 30}
    first = client.chat.completions.create(**fields, messages=[QUESTION], tool_choice=NAMED)
    said = first.choices[0].message
    assert said.tool_calls is not None
    result: Any = {
        "role": "tool",
        "tool_call_id": said.tool_calls[0].id,
        "content": "Sunny, 24 degrees.",
    }
    messages: Any = [QUESTION, said.model_dump(), result]
    second = client.chat.completions.create(**fields, messages=messages, tool_choice="none")
    assert second.choices[0].message.content
    assert second.choices[0].finish_reason in ("stop", "length")
    assert second.usage is not None
    assert second.usage.prompt_tokens > 40
