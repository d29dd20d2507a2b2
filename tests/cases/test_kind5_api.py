"""Faults of OpenAI-compatible servers, reported against systems like this one."""

import json
from typing import Any

import pytest

from looseleaf.sampling.params import StructuredOutputs

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_c097_null_and_absent_content_are_empty(server: Any, chat_body: Any, tools: Any) -> None:
    answers = []
    for content in ({"content": None}, {}, {"content": ""}):
        messages = [
            *USER,
            {"role": "assistant", "tool_calls": [CALL], **content},
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        ]
        body = {**chat_body, "messages": messages, "tools": tools, "return_token_ids": True}
        answer = server.http().post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json()["prompt_token_ids"])
    assert answers[0] == answers[1] == answers[2]
    prompt = server.context.tokenizer.decode(answers[0])
    assert '{"name": "f", "arguments": {"a": 1}}' in prompt
    assert "None" not in prompt


def test_c099_fields_beyond_the_known_are_ignored(server: Any, chat_body: Any) -> None:
    more = {"user": "u", "store": True, "metadata": {"a": "b"}, "foo": {"bar": [1]}}
    messages = [{**USER[0], "id": 7, "opts": {"x": None}}]
    answer = server.http().post(CHAT, json={**chat_body, **more, "messages": messages})
    assert answer.status_code == 200
    plain = server.http().post(CHAT, json=chat_body)
    assert plain.json()["usage"]["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "path_and_fields",
    [
        (CHAT, "tool_choice tools parallel_tool_calls stop n seed logprobs top_logprobs stream"),
        (CHAT, "stream_options response_format max_completion_tokens prompt_logprobs timings"),
        (CHAT, "include_reasoning truncate_prompt_tokens return_token_ids request_id functions"),
        (COMPLETIONS, "stop n seed logprobs stream stream_options echo best_of suffix"),
        (COMPLETIONS, "prompt_logprobs truncate_prompt_tokens return_tokens_as_token_ids"),
    ],
)
def test_c100_null_is_as_good_as_nothing(server: Any, path_and_fields: tuple[str, str]) -> None:
    path, names = path_and_fields
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 2}
    body |= {"messages": USER} if path == CHAT else {"prompt": "hi"}
    plain = server.http().post(path, json=body).json()["choices"]
    for fields in (dict.fromkeys(names.split()), *({name: None} for name in names.split())):
        answer = server.http().post(path, json={**body, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == plain
    answer = server.http().post(CHAT, json={**body, "messages": USER, "tools": []})
    assert answer.status_code == 200


def test_c102_prompts_of_every_form(server: Any) -> None:
    def ask(prompt: Any) -> Any:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "return_token_ids": True}
        return server.http().post(COMPLETIONS, json=body)

    for prompt, ids in (
        ([1, 34, 22], [[1, 34, 22]]),  # and no BOS before them
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        (["a", "b"], [[256, 97], [256, 98]]),
    ):
        choices = ask(prompt).json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(ids)))
        assert [choice["prompt_token_ids"] for choice in choices] == ids
    for wrong in ([], [[]], [4000], [-1], [1, "a"], {"a": 1}, [1.5]):
        answer = ask(wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_c104_a_prompt_beyond_the_context_is_a_400(server: Any, stream: bool) -> None:
    for path, param, given in (
        (CHAT, "messages", [{"role": "user", "content": "x" * 600}]),
        (COMPLETIONS, "prompt", "x" * 600),
        (COMPLETIONS, "prompt", [5] * 601),
    ):
        body = {"model": "tiny", param: given, "stream": stream, "max_tokens": 4}
        answer = server.http().post(path, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "512" in error["message"]
        assert "has 601 tokens" in error["message"] or "has 619 tokens" in error["message"]


def test_c105_every_error_has_the_envelope(server: Any, chat_body: Any) -> None:
    client = server.http()
    for answer, status in (
        (client.post(CHAT, content=b"{"), 400),
        (client.post(CHAT, json={**chat_body, "temperature": "warm"}), 400),
        (client.post(CHAT, json={**chat_body, "tools": "all"}), 400),
        (client.post(CHAT, json={**chat_body, "model": "other"}), 404),
        (client.get("/v2/nothing"), 404),
        (client.delete(CHAT), 405),
        (client.post(CHAT, content=b" " * (17 * 2**20)), 413),
    ):
        assert answer.status_code == status
        assert set(answer.json()) == {"error"}
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "secret" * 500, "content": 5}] * 3000},
        {"messages": ["secret"] * 12_000},
        {"tools": [{"type": "secret" * 100, "secret": i} for i in range(3000)]},
        {"tools": [{"type": "function", "function": {"name": "secret!" * 1000}}]},
        {"tool_choice": "secret" * 1000, "tools": [TOOL]},
        {"stop": ["secret"] * 5000},
    ],
)
def test_c107_errors_are_bounded_and_repeat_nothing(
    server: Any, chat_body: Any, fields: dict[str, Any]
) -> None:
    answer = server.http().post(CHAT, json={**chat_body, **fields})
    assert answer.status_code == 400
    assert len(answer.content) <= 8192
    assert answer.text.count("secret") <= 7  # of a role, the first forty characters


def test_c109_a_strict_schema_is_kept_to_or_refused(server: Any, chat_body: Any) -> None:
    schema = {
        "type": "object",
        "title": "Place",
        "description": "A place.",
        "properties": {
            "at": {
                "type": "object",
                "title": "At",
                "description": "Where it is.",
                "properties": {"x": {"type": "integer", "description": "East."}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
        "required": ["at"],
        "additionalProperties": False,
    }

    def ask(schema: dict[str, Any]) -> Any:
        given = {"name": "place", "schema": schema, "strict": True}
        form = {"type": "json_schema", "json_schema": given}
        return server.http().post(CHAT, json={**chat_body, "response_format": form})

    assert ask(schema).status_code == 200
    refused = ask({**schema, "properties": {"at": {"type": "nonsense"}}})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]

    grammars, tokenizer = server.context.grammars, server.context.tokenizer
    grammar = grammars.compile(StructuredOutputs(json=schema))

    def follows(text: str) -> bool:
        matcher = grammars.matcher(grammar)
        token_ids = tokenizer.encode(text, add_special=False, parse_special=False)
        return bool(matcher.consume_tokens([*token_ids, tokenizer.eos_token_id]))

    assert follows('{"at": {"x": 5}}')
    assert not follows("It is at 5.")
    assert not follows('{"at": {"x": 5, "y": 6}}')
    assert not follows('{"at": {"x": 5}')


def test_c110_text_parts_are_joined(server: Any, chat_body: Any) -> None:
    def prompt(content: Any) -> Any:
        body = {**chat_body, "messages": [{"role": "user", "content": content}]}
        return server.http().post(CHAT, json={**body, "return_token_ids": True})

    parts = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
    ids = prompt(parts).json()["prompt_token_ids"]
    assert ids == prompt("tell me a riddle").json()["prompt_token_ids"]
    assert "tell me a riddle" in server.context.tokenizer.decode(ids)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    assert prompt([*parts, image]).status_code == 400


def test_c111_developer_is_system_and_invented_roles_are_refused(
    start_server: Any, chat_body: Any
) -> None:
    template = (
        "{% if messages[0].role == 'system' %}S:{{ messages[0].content }}"
        "{% set messages = messages[1:] %}{% endif %}{{ messages[0].content }}"
    )
    server = start_server(template=template)

    def ask(role: str) -> Any:
        messages = [{"role": role, "content": "be brief"}, *USER]
        body = {**chat_body, "messages": messages, "return_token_ids": True}
        return server.http().post(CHAT, json=body)

    prompts = [ask(role).json()["prompt_token_ids"] for role in ("system", "developer")]
    assert prompts[0] == prompts[1]
    assert server.context.tokenizer.decode(prompts[1]) == "S:be briefhi"
    refused = ask("banana")
    assert refused.status_code == 400
    assert "known roles" in refused.json()["error"]["message"]


def test_c113_max_completion_tokens_counts_and_wins(server: Any) -> None:
    for limits in ({"max_completion_tokens": 8}, {"max_completion_tokens": 8, "max_tokens": 20}):
        body = {"model": "tiny", "messages": USER, **limits}
        answer = server.http().post(CHAT, content=json.dumps(body)).json()
        assert answer["usage"]["completion_tokens"] == 8
        assert answer["choices"][0]["finish_reason"] == "length"
