"""Tool calls and reasoning over HTTP, with a model whose words are known beforehand."""

import json
from typing import Any

import pytest

from looseleaf.server.replies import ReplySettings
from looseleaf.text.dialects import dialect_of

USER = [{"role": "user", "content": "How warm is it in Rome?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CALLS = f'{CALL}\n<tool_call>\n{{"name": "get_time"}}\n</tool_call>'
AWARE = (
    "{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments.city }}{% endfor %}\n{% endfor %}"
)
"""A template that knows tools, and prints a city only where arguments are an object."""


def ask(server: Any, **fields: Any) -> Any:
    body: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": TOOLS, **fields}
    return server.client().chat.completions.create(**body)


def streamed(server: Any, **fields: Any) -> tuple[str, list[tuple[str, str]], str, int]:
    """Content, calls by name and arguments, finish reason, and how many pieces of calls came."""
    content, calls, reason, pieces = "", [], "", 0
    for chunk in ask(server, stream=True, **fields):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for piece in choice.delta.tool_calls or []:
            pieces += 1
            if piece.id is not None:
                assert piece.type == "function"
                assert piece.index == len(calls)
                calls.append([piece.function.name, ""])
            calls[piece.index][1] += piece.function.arguments
        reason = choice.finish_reason or reason
    return content, [(name, arguments) for name, arguments in calls], reason, pieces


def test_calls_are_taken_out_of_the_text(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALLS), max_model_len=2048, num_blocks=1024)
    (choice,) = ask(server).choices
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"
    first, second = choice.message.tool_calls
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert (first.function.name, json.loads(first.function.arguments)) == (
        "get_weather",
        {"city": "Rome"},
    )
    assert (second.function.name, second.function.arguments) == ("get_time", "{}")


def test_calls_are_streamed_while_they_are_written(start_server: Any, says: Any) -> None:
    text = f"Let me see.\n{CALLS}"
    server = start_server(
        next_token=says(text), max_model_len=2048, num_blocks=1024, step_seconds=0.005
    )
    content, calls, reason, pieces = streamed(server)
    assert content == "Let me see."
    assert calls == [("get_weather", '{"city": "Rome"}'), ("get_time", "{}")]
    assert reason == "tool_calls"
    assert pieces > 10
    assert ask(server).choices[0].message.content == content


def test_one_call_only_where_they_may_not_be_parallel(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALLS), max_model_len=2048, num_blocks=1024)
    (choice,) = ask(server, parallel_tool_calls=False).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    assert streamed(server, parallel_tool_calls=False)[1] == [("get_weather", '{"city": "Rome"}')]


def test_every_sample_has_its_own_calls(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALL), max_model_len=2048, num_blocks=1024)
    choices = ask(server, n=3).choices
    assert len({choice.message.tool_calls[0].id for choice in choices}) == 3
    assert {choice.finish_reason for choice in choices} == {"tool_calls"}


@pytest.mark.parametrize(
    "text",
    [
        CALL.replace("}}", "}"),
        CALL.replace("get_weather", "rm_rf"),
        CALL.replace(":", "="),
        '<tool_call>{"name": ["get_weather"]}</tool_call>',
    ],
)
def test_broken_calls_are_content(start_server: Any, says: Any, text: str) -> None:
    server = start_server(next_token=says(text), max_model_len=2048, num_blocks=1024)
    (choice,) = ask(server).choices
    assert choice.message.content == text
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    assert streamed(server)[2] in ("stop", "tool_calls")


def test_calls_without_tools_are_content(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says(CALL), max_model_len=2048, num_blocks=1024)
    for fields in ({"tools": []}, {"tools": None}, {"tool_choice": "none"}):
        (choice,) = ask(server, **fields).choices
        assert choice.message.content == CALL
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Rome"}}'),
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]'),
        ("pythonic", "[get_weather(city='Rome')]"),
    ],
)
def test_other_dialects(start_server: Any, says: Any, dialect: str, text: str) -> None:
    server = start_server(
        next_token=says(text),
        replies=ReplySettings(tool_call_parser=dialect),
        max_model_len=2048,
        num_blocks=1024,
    )
    (call,) = ask(server).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert [name for name, _ in streamed(server)[1]] == ["get_weather"]


def test_forced_calls_are_held_to_a_grammar(start_server: Any, says: Any) -> None:
    """The engine here draws what the script says, whatever the grammar; that it is there is what
    can be seen. What comes of it is in tests/acceptance."""
    server = start_server(next_token=says(CALL), max_model_len=2048, num_blocks=1024)
    named = {"type": "function", "function": {"name": "get_weather"}}
    allowed = {"mode": "required", "tools": [named]}
    for choice in ("required", named, {"type": "allowed_tools", "allowed_tools": allowed}):
        (answer,) = ask(server, tool_choice=choice).choices
        assert answer.finish_reason == "tool_calls"
        assert answer.message.tool_calls[0].function.name == "get_weather"


def test_auto_can_be_switched_off(start_server: Any, says: Any, chat_body: Any) -> None:
    server = start_server(
        next_token=says(CALL),
        replies=ReplySettings(auto_tool_choice=False),
        max_model_len=2048,
        num_blocks=1024,
    )
    body = {**chat_body, "tools": TOOLS}
    answer = server.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]
    assert ask(server, tool_choice="required").choices[0].message.tool_calls


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [tool(name="")]}, "tools", "tools[0].function.name must have"),
        ({"tools": [tool(), tool(name="a b")]}, "tools", "tools[1].function.name must have"),
        ({"tools": [tool(name="x" * 129)]}, "tools", "128 letters"),
        ({"tools": [tool(), tool()]}, "tools", "two functions of one name"),
        ({"tools": [tool(parameters=[])]}, "tools", 'of the type "object"'),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools", 'of the type "object"'),
        ({"tools": [tool(description=5)]}, "tools", "must be a text"),
        ({"tools": [tool(strict="yes")]}, "tools", "true or false"),
        ({"tools": [{"type": "web_search"}]}, "tools", "the only kind of tool"),
        ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools", "at most 128"),
        ({"tools": "all"}, "tools", "does not fit"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice", "must be"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        (
            {
                "tools": [tool()],
                "tool_choice": {"type": "function", "function": {"name": "secret"}},
            },
            "tool_choice",
            "not among the tools",
        ),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            {
                "tools": [tool(parameters={"properties": {"a": {"type": "nonsense"}}})],
                "tool_choice": "required",
            },
            "tools",
            "nonsense",
        ),
        (
            {"tools": [tool(parameters={"not": {"const": "secret"}})], "tool_choice": "required"},
            "tools",
            "Unimplemented keys",
        ),
        (
            {"tools": [tool()], "structured_outputs": {"regex": "a+"}},
            "tools",
            "does not go with tools",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
    ],
)
def test_what_tools_cannot_be(
    server: Any, chat_body: Any, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = server.http().post("/v1/chat/completions", json={**chat_body, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert "secret" not in error["message"]


def test_arguments_may_be_one_of_several_forms(start_server: Any, chat_body: Any) -> None:
    server = start_server(max_model_len=2048, num_blocks=1024)
    forms = {"properties": {"pet": {"oneOf": [{"const": "cat"}, {"const": "dog"}]}}}
    fields = {"tools": [tool(parameters=forms)], "tool_choice": "required"}
    answer = server.http().post("/v1/chat/completions", json={**chat_body, **fields})
    assert answer.status_code == 200, answer.text


HISTORY = [
    *USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
]


@pytest.mark.parametrize(
    ("template", "holds"),
    [
        (AWARE, ["get_weatherRome", "[tool]21 degrees", '"description": "The weather of']),
        (None, [CALL, "<tool_response>\n21 degrees\n</tool_response>", "get_time", "<tools>"]),
    ],
)
def test_tools_calls_and_results_reach_the_model(
    start_server: Any, says: Any, template: str | None, holds: list[str]
) -> None:
    how = {} if template is None else {"template": template}
    server = start_server(next_token=says("Warm."), max_model_len=2048, num_blocks=1024, **how)
    answer = ask(server, messages=HISTORY, extra_body={"return_token_ids": True})
    assert answer.choices[0].message.content == "Warm."
    prompt = server.context.tokenizer.decode(answer.prompt_token_ids)
    for text in holds:
        assert text in prompt
    hidden = ask(server, messages=USER, tool_choice="none", extra_body={"return_token_ids": True})
    assert "get_time" not in server.context.tokenizer.decode(hidden.prompt_token_ids)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tools>...<tool_call>", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]... [TOOL_CALLS]", "mistral"),
        ("{% if tools %}<|python_start|>", "pythonic"),
        ("{% if tools %}<|python_tag|>", "llama3_json"),
        ("Environment: ipython", "llama3_json"),
        ("{{ messages }}", "hermes"),
    ],
)
def test_the_template_tells_the_dialect(template: str, name: str) -> None:
    assert dialect_of(template).name == name
    assert ReplySettings(tool_call_parser="pythonic").dialect(template).name == "pythonic"


THOUGHT = "<think>\nRome is warm.\n</think>\n\nVery warm."


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_reasoning_is_told_apart(start_server: Any, says: Any, parser: str) -> None:
    text = THOUGHT if parser == "qwen3" else THOUGHT.removeprefix("<think>\n")
    server = start_server(next_token=says(text), replies=ReplySettings(reasoning_parser=parser))
    (choice,) = ask(server, tools=None).choices
    assert choice.message.content == "Very warm."
    assert choice.message.reasoning_content == "Rome is warm."
    assert choice.message.reasoning == "Rome is warm."
    assert choice.finish_reason == "stop"
    (hidden,) = ask(server, tools=None, extra_body={"include_reasoning": False}).choices
    assert hidden.message.content == "Very warm."
    assert not hasattr(hidden.message, "reasoning_content")
    content = reasoning = ""
    for chunk in ask(server, tools=None, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
    assert (content, reasoning) == ("Very warm.", "Rome is warm.")


def test_reasoning_stays_where_nobody_asked_for_it_to_be_told_apart(
    start_server: Any, says: Any
) -> None:
    server = start_server(next_token=says(THOUGHT))
    assert ask(server, tools=None).choices[0].message.content == THOUGHT


def test_a_prompt_that_has_begun_or_ended_the_reasoning(start_server: Any, says: Any) -> None:
    opened = "{{ messages[0].content }}{% if think %}<think>\n{% else %}<think></think>{% endif %}"
    server = start_server(
        next_token=says("Hm.</think>Yes."),
        template=opened,
        replies=ReplySettings(reasoning_parser="qwen3"),
    )

    def message(think: bool) -> Any:
        more = {"chat_template_kwargs": {"think": think}}
        return ask(server, tools=None, extra_body=more).choices[0].message

    assert (message(True).reasoning_content, message(True).content) == ("Hm.", "Yes.")
    assert message(False).content == "Hm.</think>Yes."


def test_calls_after_reasoning(start_server: Any, says: Any) -> None:
    server = start_server(
        next_token=says(f"<think>I need the weather.</think>\n{CALL}"),
        replies=ReplySettings(reasoning_parser="qwen3"),
        max_model_len=2048,
        num_blocks=1024,
    )
    for choice in ("auto", "required"):
        message = ask(server, tool_choice=choice).choices[0].message
        assert message.content is None
        assert message.reasoning_content == "I need the weather."
        assert message.tool_calls[0].function.name == "get_weather"
