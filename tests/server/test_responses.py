"""/v1/responses, through the official client."""

from typing import Any

import openai
import pytest

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def create(server: Any, **fields: Any) -> Any:
    return server.client().responses.create(**{"model": "tiny", "input": "hi", **fields})


def test_whole_and_stored(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says("Hello there"))
    made = create(server, instructions="Be kind.", metadata={"a": "b"})
    assert made.output_text == "Hello there"
    assert (made.status, made.metadata, made.usage.output_tokens) == ("completed", {"a": "b"}, 12)
    client = server.client()
    assert client.responses.retrieve(made.id).output_text == "Hello there"
    more = create(server, previous_response_id=made.id, input="and now?")
    # Its prompt is the conversation without the instructions, and the new turn.
    chat = [("user", "hi"), ("assistant", "Hello there"), ("user", "and now?")]
    messages = [{"role": role, "content": text} for role, text in chat]
    expected = server.http().post("/tokenize", json={"messages": messages}).json()["count"]
    assert more.usage.input_tokens == expected
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        create(server, previous_response_id=made.id)


def test_a_key_finds_its_own_responses_only(server: Any) -> None:
    made = create(server, max_output_tokens=1)
    other = server.http().get(f"/v1/responses/{made.id}", headers={"authorization": "Bearer x"})
    assert other.status_code == 404
    assert made.status == "incomplete"
    assert made.incomplete_details.reason == "max_output_tokens"


def test_events_of_text_and_calls(start_server: Any, says: Any) -> None:
    server = start_server(
        next_token=says(f"Look.\n{CALL}"), max_model_len=2048, num_blocks=1024, step_seconds=0.005
    )
    events = list(create(server, stream=True, tools=[TOOL]))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("function_call_arguments.delta", "function_call_arguments.done", "completed"),
    ]
    message, call = events[-1].response.output
    assert message.content[0].text == "Look."
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Rome"}')
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    assert len(pieces) > 2  # as they come, not at the end
    again = create(
        server,
        tools=[TOOL],
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "warm?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "20"},
        ],
    )
    assert again.output[1].name == "get_weather"


def test_a_stream_is_cancelled(start_server: Any) -> None:
    server = start_server(step_seconds=0.01)
    events = []
    for event in create(server, stream=True, max_output_tokens=400):
        events.append(event)
        if len(events) == 5:
            assert server.client().responses.cancel(events[0].response.id).status == "cancelled"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert len(events) < 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conversation": "c"}, "conversation is not supported"),
        ({"tools": [{"type": "web_search"}]}, "no tools run on this server"),
        ({"input": [{"type": "computer_call"}]}, "must be a message"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "text only"),
        ({"input": []}, "there are no messages"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "needs a schema"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
def test_what_is_refused(server: Any, fields: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        create(server, **fields)
