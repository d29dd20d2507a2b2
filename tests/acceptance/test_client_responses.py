"""The official `openai` client, unmodified, on /v1/responses with the real model."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import BaseModel, Field
from serving import MODEL, SECONDS, Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": "What is the capital of Japan?",
    "temperature": 0,
    "max_output_tokens": 40,
}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
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
    "input": "How is the weather in Rome over the next three days?",
    "max_output_tokens": 100,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "get_weather"},
}


class Place(BaseModel):
    country: Literal["France", "Japan", "Peru"]
    population: int = Field(ge=0, le=99_999_999)


@pytest.fixture(scope="module")
def client(model_server: Served) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
    ) as made:
        yield made


def exact(answer: Any) -> None:
    """The client itself forgives fields that are missing or of other types; here none are."""
    type(answer).model_validate_json(answer.to_json(), strict=True)


def check_arguments(arguments: str) -> None:
    value = json.loads(arguments)
    assert value.keys() == {"city", "days"}
    assert value["city"] in ("Rome", "Oslo", "Lima")
    assert 1 <= value["days"] <= 7


def test_whole(client: OpenAI) -> None:
    response = client.responses.create(**ASKED)
    exact(response)
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.output_text == "The capital of Japan is Tokyo."
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.role, message.status) == ("assistant", "completed")
    usage = response.usage
    assert usage is not None
    assert 0 < usage.output_tokens < 20
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    again = client.responses.create(**ASKED).usage
    assert again is not None
    assert again.input_tokens_details.cached_tokens == usage.input_tokens - 1

    cut = client.responses.create(**{**ASKED, "max_output_tokens": 2})
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_events_of_a_stream(client: OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    for event in events:
        exact(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *["response.output_text.delta"] * len(deltas),
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed"),
    ]
    assert len(deltas) > 3
    assert "".join(deltas) == whole.output_text
    last: Any = events[-1]
    assert last.response.output_text == whole.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens  # type: ignore[union-attr]
    with client.responses.stream(**ASKED) as stream:
        final = stream.until_done().get_final_response()
    assert final.output_text == whole.output_text


def test_parse_with_a_pydantic_model(client: OpenAI) -> None:
    fields = {**ASKED, "input": "Where is Tokyo? Answer as JSON."}
    place = client.responses.parse(**fields, text_format=Place).output_parsed
    assert isinstance(place, Place)
    with client.responses.stream(**fields, text_format=Place) as stream:
        final = stream.until_done().get_final_response()
    assert final.output_parsed == place


def test_a_call_and_its_result(client: OpenAI) -> None:
    response = client.responses.create(**CALL)
    exact(response)
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.status) == ("get_weather", "completed")
    check_arguments(call.arguments)

    events = list(client.responses.create(**CALL, stream=True))
    for event in events:
        exact(event)
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(pieces) > 1
    assert "".join(pieces) == done.arguments == call.arguments

    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "Sunny, 24 degrees.",
    }
    follow: dict[str, Any] = {**ASKED, "tools": [TOOL], "tool_choice": "none"}
    told = client.responses.create(
        **{**follow, "input": [{"role": "user", "content": CALL["input"]}, call.to_dict(), result]}
    )
    assert told.output_text
    stored = client.responses.create(
        **{**follow, "input": [result]}, previous_response_id=response.id
    )
    assert stored.output_text == told.output_text
    assert stored.previous_response_id == response.id


def test_stored_answers(client: OpenAI) -> None:
    first = client.responses.create(**ASKED, instructions="Be brief.")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(
        **{**ASKED, "input": "And of Peru?"}, previous_response_id=first.id
    )
    # It begins as the first conversation did, whose tokens are found stored.
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens - 30
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    unstored = client.responses.create(**ASKED, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_logprobs(client: OpenAI) -> None:
    response = client.responses.create(
        **ASKED, include=["message.output_text.logprobs"], top_logprobs=2
    )
    exact(response)
    message: Any = response.output[0]
    logprobs = message.content[0].logprobs
    assert "".join(one.token for one in logprobs).startswith(response.output_text)
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in logprobs)
