"""The official `anthropic` client, unmodified, with the real model."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel
from serving import MODEL, SECONDS, Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION: Any = {"role": "user", "content": "What is the capital of Japan?"}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [QUESTION],
    "max_tokens": 40,
    "extra_body": {"temperature": 0},  # which this client has no name for any more
}
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", "Oslo", "Lima"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CALL: dict[str, Any] = {
    **ASKED,
    "messages": [
        {"role": "user", "content": "How is the weather in Rome over the next three days?"}
    ],
    "max_tokens": 100,
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "get_weather"},
}


class Place(BaseModel):
    country: Literal["France", "Japan", "Peru"]
    rainy: bool


@pytest.fixture(scope="module")
def client(model_server: Served) -> Iterator[Anthropic]:
    with Anthropic(
        base_url=model_server.url, api_key="none", max_retries=0, timeout=SECONDS
    ) as made:
        yield made


def exact(answer: Any) -> None:
    """The client itself forgives fields that are missing or of other types; here none are."""
    type(answer).model_validate_json(answer.to_json(), strict=True)


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def check_input(given: Any) -> None:
    assert given.keys() == {"city", "days"}
    assert given["city"] in ("Rome", "Oslo", "Lima")
    assert 1 <= given["days"] <= 7


def test_whole_and_counted(client: Anthropic) -> None:
    message = client.messages.create(**ASKED)
    exact(message)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert text_of(message) == "The capital of Japan is Tokyo."
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert 0 < message.usage.output_tokens < 20
    counted = client.messages.count_tokens(model=MODEL, messages=[QUESTION]).input_tokens
    again = client.messages.create(**ASKED).usage
    assert again.cache_read_input_tokens == counted - 1
    assert again.input_tokens == 1
    cut = client.messages.create(**{**ASKED, "max_tokens": 2})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)


def test_system_prompt_and_parts(client: Anthropic) -> None:
    parts: Any = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}
    same = client.messages.create(**{**ASKED, "messages": [parts]})
    assert text_of(same) == "The capital of Japan is Tokyo."
    alone = client.messages.count_tokens(model=MODEL, messages=[QUESTION]).input_tokens
    system = client.messages.count_tokens(
        model=MODEL,
        messages=[QUESTION],
        system="Answer as a pirate would, in rhymes, and at length.",
    )
    assert system.input_tokens != alone
    begun: Any = [QUESTION, {"role": "assistant", "content": "The capital of Japan is"}]
    assert text_of(client.messages.create(**{**ASKED, "messages": begun})) == " Tokyo."


def test_streamed(client: Anthropic) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 3
    assert "".join(pieces) == text_of(final) == text_of(whole)
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    events = list(client.messages.create(**ASKED, stream=True))
    for event in events:
        exact(event)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    # A busy machine puts two tokens into one piece now and then.
    assert {*kinds[2:-3]} == {"content_block_delta"}
    said = [event.delta for event in events if event.type == "content_block_delta"]
    assert "".join(delta.text for delta in said if delta.type == "text_delta") == text_of(whole)


def test_stop_sequences(client: Anthropic) -> None:
    fields: dict[str, Any] = {**ASKED, "stop_sequences": ["Tokyo", "never said"]}
    message = client.messages.create(**fields)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Tokyo")
    assert text_of(message) == "The capital of Japan is "
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "Tokyo")
    assert text_of(final) == text_of(message)


def test_a_call_and_its_result(client: Anthropic) -> None:
    message = client.messages.create(**CALL)
    exact(message)
    (use,) = message.content
    assert use.type == "tool_use"
    assert use.name == "get_weather"
    assert message.stop_reason == "tool_use"
    check_input(use.input)

    with client.messages.stream(**CALL) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 2
    assert final.stop_reason == "tool_use"
    assert final.content[0].type == "tool_use"
    assert final.content[0].input == use.input

    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny, 24 degrees."}
    messages: Any = [
        *CALL["messages"],
        {"role": "assistant", "content": [block.to_dict() for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(
        **{**ASKED, "messages": messages, "tools": [TOOL], "tool_choice": {"type": "none"}}
    )
    assert text_of(answer)
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_any_tool(client: Anthropic) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = client.messages.create(**{**CALL, "tool_choice": choice})
    (use,) = message.content
    assert use.type == "tool_use"
    check_input(use.input)


def test_parse_with_a_pydantic_model(client: Anthropic) -> None:
    asked: Any = [{"role": "user", "content": "Where is Tokyo? Answer as JSON."}]
    fields: dict[str, Any] = {**ASKED, "messages": asked, "output_format": Place}
    message = client.messages.parse(**fields)
    assert isinstance(message.parsed_output, Place)
    assert message.stop_reason == "end_turn"
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert final.parsed_output == message.parsed_output


def test_errors(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "another"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**ASKED, "max_tokens": 0})


async def test_many_at_once(model_server: Served) -> None:
    async with AsyncAnthropic(
        base_url=model_server.url, api_key="none", max_retries=0, timeout=SECONDS
    ) as many:

        async def streamed() -> str:
            async with many.messages.stream(**ASKED) as stream:
                return "".join([piece async for piece in stream.text_stream])

        texts = await asyncio.gather(*(streamed() for _ in range(4)))
        models = await many.models.list()
    assert texts == ["The capital of Japan is Tokyo."] * 4
    assert [card.id for card in models.data] == [MODEL]
