import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import MAX_RANGE

from looseleaf.core.errors import LooseleafError
from looseleaf.text import jinja_sandbox
from looseleaf.text.chat_template import ChatTemplate
from looseleaf.text.errors import TemplateError
from looseleaf.text.tokenizer import Tokenizer

LINES = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
USER = {"role": "user", "content": "hi"}


def rendered(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or [USER], **options)


def test_generation_prompt_is_optional() -> None:
    assert rendered(LINES) == "user: hi;assistant:"
    assert rendered(LINES, add_generation_prompt=False) == "user: hi;"


def test_special_tokens_and_extra_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ thinking }}{{ messages | length }}"
    assert rendered(source, extra={"thinking": "on", "messages": []}) == "<s></s>on1"


def test_whitespace_of_blocks_is_trimmed() -> None:
    assert rendered("  {% if true %}\nyes\n  {% endif %}\n") == "yes\n"


def test_c097_absent_and_null_content_are_empty() -> None:
    call = {"type": "function", "function": {"name": "now", "arguments": "{}"}}
    text = rendered(
        LINES,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
        {"role": "assistant"},
    )
    assert text == "user: hi;assistant: ;tool: noon;assistant: ;assistant:"


def test_c110_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
    assert rendered(LINES, {"role": "user", "content": parts}).startswith("user: tell me a riddle;")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "'image_url'.*text only"),
        ([{"type": "text"}], "content part"),
        (["bare"], "content part of type 'str'"),
        (7, "type int"),
    ],
)
def test_c110_other_content_is_refused(content: Any, expected: str) -> None:
    with pytest.raises(TemplateError, match=expected):
        rendered(LINES, {"role": "user", "content": content})


@pytest.mark.parametrize("calls", [5, True, "x", {"a": 1}, [5], [None, {}]])
def test_tool_calls_are_a_list_of_objects(calls: Any) -> None:
    with pytest.raises(TemplateError, match=r"tool_calls of message 0 are not a list of objects"):
        rendered(LINES, {"role": "assistant", "tool_calls": calls})


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 100_000, "{", "[1]"])
def test_arguments_that_are_no_json_object_stay_text(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [call]}
    source = "{{ messages[0].tool_calls[0].function.arguments is string }}"
    assert rendered(source, message) == "True"


@pytest.mark.parametrize("value", ["x" * 10_000, {"x" * 10_000: 1}, ["x" * 10_000], 10**400])
def test_c107_of_unknown_roles_and_types_little_is_repeated(value: Any) -> None:
    for message in (
        {"role": value, "content": ""},
        {"role": "user", "content": [{"type": value}]},
    ):
        with pytest.raises(TemplateError) as caught:
            rendered(LINES, message)
        assert len(str(caught.value)) < 200


def test_c111_developer_is_system() -> None:
    developer = {"role": "developer", "content": "be brief"}
    assert rendered(LINES, developer, USER) == "system: be brief;user: hi;assistant:"
    assert developer["role"] == "developer"


@pytest.mark.parametrize("role", ["banana", None])
def test_c111_unknown_roles_are_refused(role: str | None) -> None:
    with pytest.raises(TemplateError, match=r"message 1 .*system, developer, user, assistant"):
        rendered(LINES, USER, {"role": role, "content": ""})


def test_c129_bos_of_the_template_is_the_only_one(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", "<|bos|>", "<|im_end|>")
    ids = tokenizer.encode(template.render([USER]), add_special=True, parse_special=True)
    assert [tokenizer.is_special(token_id) for token_id in ids] == [True, False, False]
    assert tokenizer.decode(ids) == "hi"


@pytest.mark.parametrize("source", [None, {}, []])
def test_c131_no_template_advises_completions(source: Any) -> None:
    template = ChatTemplate(source)
    with pytest.raises(TemplateError, match="/v1/completions"):
        template.render([USER])


def test_c131_a_broken_template_harms_only_chat() -> None:
    template = ChatTemplate("ok\n{% if %}")
    with pytest.raises(TemplateError, match=r"line 2.*/v1/completions"):
        template.render([USER])


def test_c132_the_templates_own_message_is_the_error() -> None:
    source = (
        "{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
    )
    with pytest.raises(TemplateError, match=r"^System role not supported$"):
        rendered(source, {"role": "developer", "content": ""}, USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        f"{{{{ range({MAX_RANGE + 1}) | list }}}}",
    ],
)
def test_c132_any_failure_of_a_template_is_the_users_error(source: str) -> None:
    with pytest.raises(LooseleafError, match="chat template failed"):
        rendered(source)


def test_output_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_sandbox, "MAX_PROMPT_CHARS", 1000)
    loops = "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="more than 1000 characters"):
        rendered(loops)


def test_c134_tool_use_template_is_taken_with_tools() -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = ChatTemplate(named)
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[]) == "plain"
    assert template.render([USER], tools=tools) == "tools"
    assert template.render([USER], name="tool_use") == "tools"
    assert ChatTemplate({"default": "{{ tools | length }}"}).render([USER], tools=tools) == "1"


def test_c134_only_named_templates_ask_for_a_choice() -> None:
    template = ChatTemplate({"rag": "documents", "tool_use": "tools"})
    with pytest.raises(TemplateError, match=r"rag, tool_use.*choose"):
        template.render([USER])
    with pytest.raises(TemplateError, match=r"'poem'.*rag, tool_use"):
        template.render([USER], name="poem")
    assert template.render([USER], name="rag") == "documents"


@pytest.mark.parametrize(
    "source",
    [
        LINES,
        "{% for m in messages %}{{ m.role + ': ' + m.content | trim }};{% endfor %}",
        "{{ messages[-1].content | length }}|user: hi;assistant: {{ messages[-1].content }}</s>",
    ],
)
@pytest.mark.parametrize("final", ["Sure, ", "", "user", "hi;"])
def test_continued_message_ends_the_prompt(source: str, final: str) -> None:
    assistant = {"role": "assistant", "content": final}
    text = rendered(source, USER, assistant, continue_final_message=True)
    assert text.split("|")[-1] == f"user: hi;assistant: {final}"
    assert assistant["content"] == final


def test_continued_message_must_be_printed() -> None:
    with pytest.raises(TemplateError, match="continue_final_message"):
        rendered("{{ messages | length }}", continue_final_message=True)


def test_no_messages_are_refused() -> None:
    with pytest.raises(TemplateError, match="at least one"):
        ChatTemplate(LINES).render([])


def test_json_is_not_escaped_for_html() -> None:
    source = "{{ {'b': '<é>', 'a': 1} | tojson }}{{ [1] | tojson(indent=2) }}"
    assert rendered(source) == '{"b": "<é>", "a": 1}[\n  1\n]'


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"city": "Brno"}', "Brno"), ("{broken", ""), ("[1]", "")]
)
def test_tool_call_arguments_are_an_object_where_they_can_be(arguments: str, expected: str) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    source = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    assert rendered(source, {"role": "assistant", "tool_calls": [call]}) == expected
    assert call["function"] == {"name": "weather", "arguments": arguments}


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%%') }}"
    )
    assert rendered(source, USER, USER) == "hi%"


def test_templates_of_a_gguf_file(byte_level_metadata: dict[str, Any]) -> None:
    metadata = byte_level_metadata | {
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    template = ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))
    assert template.names == ("default", "tool_use")
    assert template.render([USER]) == "<|bos|><|im_end|>"


@pytest.mark.model
def test_smollm2_prompts_equal_the_oracle(smollm2_path: Path, shared_dir: Path) -> None:
    gguf = pytest.importorskip("looseleaf.weights.gguf")
    metadata = gguf.GGUFFile(smollm2_path).metadata
    template = ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))
    oracle = json.loads((shared_dir / "oracle" / "smollm2-tokenize.json").read_text())
    for case in oracle["chat_prompts"]:
        assert template.render(case["messages"]) == case["prompt"]


def test_a_message_that_is_no_object_is_refused() -> None:
    with pytest.raises(TemplateError, match="message 0 is a int"):
        ChatTemplate("x").render([1])
