"""/v1/messages, as Anthropic's clients send and read it."""

import json
from typing import Any

import msgspec
import pytest

from looseleaf.server.anthropic.prompt import chat_request
from looseleaf.server.anthropic.protocol import MessagesRequest

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL: Any = {"name": "get_weather", "input_schema": {"type": "object"}}


def post(server: Any, path: str = "/v1/messages", **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    return server.http().post(
        path, json={"model": "tiny", "max_tokens": 100, "messages": messages, **fields}
    )


def events(answer: Any) -> list[dict[str, Any]]:
    found = []
    for frame in answer.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def test_whole(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says("Hello there"))
    made = post(server, system=[{"type": "text", "text": "Be kind.", "cache_control": {}}]).json()
    assert made["content"] == [{"type": "text", "text": "Hello there"}]
    assert (made["type"], made["role"], made["stop_reason"]) == ("message", "assistant", "end_turn")
    usage = post(server).json()["usage"]
    count = post(server, "/v1/messages/count_tokens").json()["input_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    assert post(server, max_tokens=3).json()["stop_reason"] == "max_tokens"
    stopped = post(server, stop_sequences=["the"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "the")


def test_events(start_server: Any, says: Any) -> None:
    server = start_server(
        next_token=says(f"Look.\n{CALL}"), max_model_len=2048, num_blocks=1024, step_seconds=0.005
    )
    found = events(post(server, stream=True, tools=[TOOL]))
    kinds = list(dict.fromkeys(event["type"] for event in found))
    assert kinds == [
        *("message_start", "ping", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Look."
    pieces = [delta["partial_json"] for delta in deltas if delta.get("partial_json")]
    assert json.loads("".join(pieces)) == {"city": "Rome"}
    assert len(pieces) > 2  # as they come, not at the end
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    whole = post(server, tools=[TOOL]).json()["content"]
    assert (whole[1]["type"], whole[1]["input"]) == ("tool_use", {"city": "Rome"})
    result = {"type": "tool_result", "tool_use_id": whole[1]["id"], "content": "20"}
    messages = [
        {"role": "user", "content": "warm?"},
        {"role": "assistant", "content": whole},
        {"role": "user", "content": [result]},
    ]
    assert post(server, tools=[TOOL], messages=messages).status_code == 200


def test_a_schema_of_the_output() -> None:
    def asked(config: Any) -> Any:
        fields = {"model": "tiny", "max_tokens": 9, "messages": [], "output_config": config}
        return chat_request(msgspec.convert(fields, MessagesRequest)).response_format

    schema = {"enum": ["no", "yes"]}
    found = asked({"effort": "low", "format": {"type": "json_schema", "schema": schema}})
    assert (found.type, found.json_schema.schema) == ("json_schema", schema)
    assert asked({"effort": "low", "format": None}) is None


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"model": "other"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
        ),
        ({"tools": [{"name": "x", "type": "bash_1"}]}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error"),
        ({"output_config": {"format": {"type": "json_schema"}}}, 400, "invalid_request_error"),
    ],
)
def test_errors(server: Any, fields: Any, status: int, kind: str) -> None:
    answer = post(server, **fields)
    assert answer.status_code == status
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"]
