"""Faults around chat templates, reported against systems like this one."""

from typing import Any

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOS = 256
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
LLAMA3 = (
    "{% for m in messages %}{% set text = '<' + m.role + '>' + m.content %}"
    "{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
)


def test_c129_one_bos_in_every_way_of_asking(start_server: Any) -> None:
    server = start_server(template=LLAMA3)

    def tokens(path: str, **fields: Any) -> list[int]:
        body = {"model": "tiny", "max_tokens": 1, "return_token_ids": True, **fields}
        answer = server.http().post(path, json=body).json()
        found = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
        return list(found)

    for found in (
        tokens(CHAT, messages=[SYSTEM, USER]),
        tokens(COMPLETIONS, prompt="hi"),
        tokens(COMPLETIONS, prompt="<|bos|>hi"),  # text that has it already gets no second
    ):
        assert found[0] == BOS
        assert found.count(BOS) == 1
    assert BOS not in tokens(COMPLETIONS, prompt="hi", add_special_tokens=False)


def test_c131_a_base_model_serves_completions_and_advises(
    start_server: Any, chat_body: Any
) -> None:
    server = start_server(template=None)  # which starts all the same
    answer = server.http().post(CHAT, json=chat_body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "no chat template" in error["message"]
    assert "/v1/completions" in error["message"]
    for extra in ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"n": 2}):
        assert server.http().post(CHAT, json={**chat_body, **extra}).status_code == 400
    raw = server.http().post(COMPLETIONS, json={"model": "tiny", "prompt": "hi", "max_tokens": 2})
    assert raw.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}"
            "{% endif %}{{ messages[0].content }}",
            [SYSTEM, USER],
            "No system role",
        ),
        (
            "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ m.content }}"
            "{% endfor %}",
            [USER, USER],
            "Conversation roles must alternate",
        ),
        ("{{ messages[0].content.no.such.thing }}", [USER], "failed on these messages"),
    ],
)
def test_c132_what_a_template_refuses_is_a_400_in_its_words(
    start_server: Any, chat_body: Any, template: str, messages: list[Any], said: str
) -> None:
    server = start_server(template=template)
    answer = server.http().post(CHAT, json={**chat_body, "messages": messages})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    good = server.http().post(COMPLETIONS, json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    assert good.status_code == 200


def test_c134_the_template_for_tools_is_taken_with_tools(start_server: Any, chat_body: Any) -> None:
    named: Any = {
        "default": "plain {{ messages[0].content }}",
        "tool_use": "{{ tools[0].function.name }} {{ messages[0].content }}",
    }
    server = start_server(template=named)
    tools = [{"type": "function", "function": {"name": "lookup"}}]

    def prompt(**fields: Any) -> str:
        body = {**chat_body, "return_token_ids": True, **fields}
        answer = server.http().post(CHAT, json=body).json()
        return str(server.context.tokenizer.decode(answer["prompt_token_ids"]))

    assert prompt(tools=tools) == "lookup hi"
    assert prompt() == prompt(tools=[]) == prompt(tools=tools, tool_choice="none") == "plain hi"


def test_c134_templates_without_a_default_ask_for_a_choice(
    start_server: Any, chat_body: Any
) -> None:
    server = start_server(template={"rag": "x", "other": "y"})
    answer = server.http().post(CHAT, json=chat_body)
    assert answer.status_code == 400
    assert "rag, other" in answer.json()["error"]["message"]
