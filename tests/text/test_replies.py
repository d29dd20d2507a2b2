"""Replies taken apart into content, reasoning and calls, however they are cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.text.call_replies import CallRules
from looseleaf.text.dialects import DIALECTS
from looseleaf.text.reasoning import ReasoningReply
from looseleaf.text.reply import PlainReply, ReplyParser, Said

NAMES = ("f", "get_weather", "ns.g")


def parser(dialect: str, *, streamed: bool = False, most: int | None = None) -> ReplyParser:
    return DIALECTS[dialect].parser(CallRules(NAMES, streamed, most))


def read(reply: ReplyParser, *pieces: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and the calls by name and arguments."""
    content = reasoning = ""
    calls: list[list[str]] = []
    ids = set()
    for said in [*map(reply.feed, pieces), reply.end()]:
        assert isinstance(said, Said)
        content += said.content
        reasoning += said.reasoning
        for delta in said.calls:
            if delta.call_id is not None:
                assert delta.index == len(calls)
                assert delta.name in NAMES
                ids.add(delta.call_id)
                calls.append([delta.name, ""])
            else:
                assert delta.name is None
                assert delta.index == len(calls) - 1
            calls[delta.index][1] += delta.arguments
    assert len(ids) == len(calls)
    return content, reasoning, [(name, arguments) for name, arguments in calls]


ONE = ("f", '{"a": 1}')
G_ARGUMENTS = '{"s": "it\'s, \\"so\\")", "d": {"k": [1, [2]]}, "n": null, "t": true, "x": -1.5}'

# Dialect, reply, content (None is all of it: what cannot be read as calls stays), calls.
WHOLE: list[tuple[str, str, str | None, list[tuple[str, str]]]] = [
    ("hermes", "Hello, world.\n", None, []),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [ONE]),
    ("hermes", 'Well.\n\n<tool_call>{"arguments":{"a": 1},"name":"f"}</tool_call>', "Well.", [ONE]),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}', "", [ONE]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [ONE]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>{"name": "ns.g", "arguments": {"b": "</tool_call>"}}</tool_call>\nDone.',
        "\nDone.",
        [ONE, ("ns.g", '{"b": "</tool_call>"}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "two\nlines"}}</tool_call>',
        "",
        [("f", '{"s": "two\\nlines"}')],
    ),
    ("hermes", "a < b, <tool> and <tool_call", None, []),
    ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}', None, []),
    ("hermes", "<tool_call>\n{'name': 'f'}\n</tool_call>", None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1}}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>', None, []),
    ("hermes", "<tool_call>" + '{"a":' * 500, None, []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', None, []),
    (
        "hermes",
        '<tool_call>{"name": "f", <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "f", ',
        [ONE],
    ),
    ("llama3_json", ' {"name": "f", "parameters": {"a": 1}}', "", [ONE]),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [ONE]),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 1}}\n'
        '{"name": "ns.g", "arguments": {}}',
        "",
        [ONE, ONE, ("ns.g", "{}")],
    ),
    ("llama3_json", '{"name": "Ada", "parameters": {}}', None, []),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}} and so on', " and so on", [ONE]),
    ("llama3_json", 'See {"name": "f", "parameters": {}}', None, []),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "", [ONE]),
    ("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}', "", [ONE]),
    (
        "mistral",
        'So: [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}},\n {"name": "f"}]',
        "So:",
        [ONE, ("f", "{}")],
    ),
    ("mistral", "[TOOL_CALLS][]", None, []),
    ("mistral", '[TOOL_CALLS][[{"name": "f"}]]', None, []),
    ("mistral", '[TOOL_CALLS][{"name": "f"}, 5]', ", 5]", [("f", "{}")]),
    ("mistral", "[TOOLS] [1, 2]", None, []),
    ("pythonic", "[f(a=1)]", "", [ONE]),
    ("pythonic", " [f()]\n", "", [("f", "{}")]),
    (
        "pythonic",
        "[f(a=1), ns.g(s='it\\'s, \"so\")', d={'k': [1, (2,)]}, n=None, t=true, x=-1.5)]",
        "",
        [ONE, ("ns.g", G_ARGUMENTS)],
    ),
    ("pythonic", '[f(s="\\d")]', "", [("f", '{"s": "\\\\d"}')]),
    ("pythonic", "[1, 2]", None, []),
    ("pythonic", "[nobody(a=1)]", None, []),
    ("pythonic", "[f(1)]", None, []),
    ("pythonic", "[f(a=b)]", None, []),
    ("pythonic", "[f(a=1e999)]", None, []),
    ("pythonic", "[f(a='\\ud800')]", None, []),
    ("pythonic", "[f(a={1, 2})]", None, []),
    ("pythonic", "[f(a=1, a=2)]", None, []),
    ("pythonic", "[f(a=1]", None, []),
    ("pythonic", "[f(a=" + "(" * 300, None, []),
    ("pythonic", "[f(a=" + "-" * 5000 + "1)]", None, []),
    ("pythonic", "Here: [f(a=1)]", None, []),
]


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), WHOLE)
def test_a_whole_reply(dialect: str, text: str, content: str | None, calls: Any) -> None:
    found = read(parser(dialect), text)
    assert found == (text if content is None else content, "", calls)
    for _, arguments in found[2]:
        assert isinstance(json.loads(arguments), dict)


def cuts(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


PARTS = {
    "hermes": (
        *("<tool_call>", "</tool_call>", "\n", '{"name": "f", "arguments": {"a": [1, "x"]}}'),
        *('{"name": "f"', "}", ", ", '"', "\\", "<", '{"arguments": {}, "name": "f"}', "text "),
    ),
    "llama3_json": (
        *("<|python_tag|>", ";", "\n", '{"name": "f", "parameters": {"a": {"b": "}"}}}', "{"),
        *('{"parameters": {"a": 1}, "name": "ns.g"}', '"', "}", "<|", "text ", " "),
    ),
    "mistral": (
        *("[TOOL_CALLS]", "[", "]", ",", " ", '{"name": "f", "arguments": {"a": 1}}', "{"),
        *('{"name": "f"}', '"', "text", "[TOOL"),
    ),
    "pythonic": (
        *("[", "f(", "a=1", ", ", "b='x)'", ")", "]", "ns.g()", "c={'k': [1]}", "'", "text", " "),
        *("[f(a=1, b='x')", "[f(a=1), "),
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_cuts_make_no_difference(dialect: str, streamed: bool, data: st.DataObject) -> None:
    known = [text for name, text, *_ in WHOLE if name == dialect and len(text) < 400]
    made = st.lists(st.sampled_from(PARTS[dialect]), max_size=12).map("".join)
    text = data.draw(st.sampled_from(known) | made)
    whole = read(parser(dialect, streamed=streamed), text)
    assert read(parser(dialect, streamed=streamed), *cuts(data, text)) == whole
    assert read(parser(dialect, streamed=streamed), *text) == whole


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_nothing_is_lost_and_whole_calls_are_valid(dialect: str, data: st.DataObject) -> None:
    text = data.draw(st.lists(st.sampled_from(PARTS[dialect]), max_size=12).map("".join))
    content, _, calls = read(parser(dialect), text)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    if not calls:
        assert content == text


@pytest.mark.parametrize(
    ("dialect", "text"), [(name, text) for name, text, content, calls in WHOLE if calls]
)
def test_streamed_calls_are_those_of_the_whole(dialect: str, text: str) -> None:
    assert read(parser(dialect, streamed=True), *text) == read(parser(dialect), text)


@pytest.mark.parametrize(
    ("dialect", "text", "pieces"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "xyz"}}</tool_call>', 10),
        ("llama3_json", '{"name": "f", "parameters": {"a": "xyz"}}', 10),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "xyz"}}]', 10),
        ("pythonic", "[f(a=1, b=2, c=3)]", 3),
    ],
)
def test_arguments_come_as_they_are_written(dialect: str, text: str, pieces: int) -> None:
    reply = parser(dialect, streamed=True)
    deltas = [delta for character in text for delta in reply.feed(character).calls]
    assert len(deltas) >= pieces
    assert deltas[0].name == "f"
    assert deltas[0].arguments.startswith("{")
    assert all(delta.name is None for delta in deltas[1:])
    whole = parser(dialect)
    assert sum(len(whole.feed(character).calls) for character in text) == 1


def test_a_streamed_call_that_breaks_or_is_cut_off_stays_as_far_as_it_came() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1, '
    assert read(parser("hermes", streamed=True), text) == ("", "", [("f", '{"a": 1, ')])
    content, _, calls = read(parser("hermes", streamed=True), text + "?? and more")
    assert content == "?? and more"
    assert calls == [("f", '{"a": 1, ')]
    assert read(parser("pythonic", streamed=True), "[f(a=1, b=")[2] == [("f", '{"a": 1')]


def test_no_more_calls_than_allowed() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    for streamed in (False, True):
        assert read(parser("hermes", streamed=streamed, most=1), call * 3) == ("", "", [ONE])
        python = parser("pythonic", streamed=streamed, most=2)
        assert read(python, "[f(a=1), f(a=1), f(a=1)]")[2] == [ONE, ONE]


def test_ids() -> None:
    def first_id(dialect: str, text: str) -> str:
        rules = CallRules(NAMES, False, None, DIALECTS[dialect].new_id)
        (call,) = DIALECTS[dialect].parser(rules).feed(text).calls
        assert call.call_id is not None
        return call.call_id

    assert first_id("hermes", '<tool_call>{"name": "f"}').startswith("call_")
    assert len(first_id("mistral", '[TOOL_CALLS][{"name": "f"}]')) == 9


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_written_is_read(dialect: str) -> None:
    calls: list[tuple[str, Any]] = [("f", {"a": 1, "b": "x\"y'"}), ("ns.g", {"c": [1, None]})]
    text = DIALECTS[dialect].written(calls)
    found = read(parser(dialect), text)
    assert found[0] == ""
    assert [(name, json.loads(a)) for name, a in found[2]] == calls


REASONING = [
    # Reply, whether it begins inside, reasoning, content.
    ("<think>\nLet me see.\n</think>\n\nFour.", False, "Let me see.", "Four."),
    ("\n<think></think>Four.", False, "", "Four."),
    ("Four. <think>no</think>", False, "", "Four. <think>no</think>"),
    ("<thinking> is fun", False, "", "<thinking> is fun"),
    ("<th", False, "", "<th"),
    ("Let me see.\n</think>\n\nFour.", True, "Let me see.", "Four."),
    ("<think>\nLet me see.</think>Four.", True, "Let me see.", "Four."),
    ("Let me see </thin", True, "Let me see </thin", ""),
    ("", True, "", ""),
    ("  Four.", False, "", "  Four."),
]


@pytest.mark.parametrize(("text", "thinks", "reasoning", "content"), REASONING)
def test_reasoning(text: str, thinks: bool, reasoning: str, content: str) -> None:
    assert read(ReasoningReply(PlainReply(), thinks=thinks), text) == (content, reasoning, [])
    hidden = ReasoningReply(PlainReply(), thinks=thinks, shown=False)
    assert read(hidden, text) == (content, "", [])


@given(data=st.data())
def test_cuts_make_no_difference_to_reasoning(data: st.DataObject) -> None:
    parts = ("<think>", "</think>", "\n", " a ", "<", "</", '<tool_call>{"name": "f"}')
    text = data.draw(st.lists(st.sampled_from(parts), max_size=10).map("".join))
    thinks = data.draw(st.booleans())

    def reply() -> ReplyParser:
        return ReasoningReply(parser("hermes"), thinks=thinks)

    whole = read(reply(), text)
    assert read(reply(), *cuts(data, text)) == whole
    assert read(reply(), *text) == whole


def test_calls_after_reasoning() -> None:
    text = '<think>I <tool_call> perhaps.</think>\n<tool_call>{"name": "f"}</tool_call>'
    reply = ReasoningReply(parser("hermes"), thinks=False)
    assert read(reply, text) == ("", "I <tool_call> perhaps.", [("f", "{}")])
