"""Clients of other APIs, unmodified, against a server whose model says what is known beforehand."""

from typing import Any

import anthropic
import ollama

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
ASKED: Any = [{"role": "user", "content": "How warm is it in Rome?"}]


def test_anthropic(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(f"Look.\n{CALL}"), max_model_len=2048, num_blocks=1024)
    tools: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        more: Any = {"model": "tiny", "max_tokens": 200, "messages": ASKED, "tools": tools}
        whole = client.messages.create(**more)
        with client.messages.stream(**more) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        counted = client.messages.count_tokens(model="tiny", messages=ASKED, tools=tools)
    assert text == "Look."
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        assert message.content[0].text == "Look."
        assert message.content[1].input == {"city": "Rome"}
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_ollama(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALL), max_model_len=2048, num_blocks=1024)
    client = ollama.Client(host=server.url, verify=False)
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    try:
        assert client.list().models[0].model == "tiny:latest"
        answer = client.chat("tiny", messages=ASKED, tools=tools)
        assert answer.message.tool_calls[0].function.arguments == {"city": "Rome"}
        pieces = list(client.generate("tiny", prompt="x", raw=True, stream=True))
        assert "".join(piece.response for piece in pieces) == CALL
        assert pieces[-1].done_reason == "stop"
    finally:
        client._client.close()
