"""/v1/chat/completions: which fields and messages are taken, ignored or refused."""

from typing import Any

import pytest

USER = [{"role": "user", "content": "hi"}]


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_c097_absent_and_null_content_are_empty(server: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    client = server.http()
    body = {"model": "tiny", "messages": messages, "max_tokens": 1}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    del messages[1]["content"]
    again = client.post("/v1/chat/completions", json=body)
    assert again.json()["usage"]["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]


def test_c099_extra_fields_are_ignored_and_unknown_ones_logged_once(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi", "id": 1, "opts": {}}],
        "max_tokens": 1,
        "user": "u",
        "store": False,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "frobnicate": 1,
    }
    client = server.http()
    for _ in range(2):
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    logged = [record.getMessage() for record in caplog.records if "not known" in record.msg]
    assert logged == ["request field 'frobnicate' is not known and is ignored"]


def test_c100_null_is_omitted_for_every_field(server: Any, chat_body: Any) -> None:
    names = """
        n stop seed logprobs top_logprobs stream stream_options tools tool_choice logit_bias
        temperature top_p top_k min_p response_format max_completion_tokens priority cache_salt
        parallel_tool_calls include_reasoning truncate_prompt_tokens return_token_ids request_id
        timings presence_penalty frequency_penalty chat_template chat_template_kwargs stop_token_ids
        ignore_eos add_generation_prompt continue_final_message prompt_logprobs
    """
    client = server.http()
    answer = client.post("/v1/chat/completions", json={**chat_body, **dict.fromkeys(names.split())})
    assert answer.status_code == 200, answer.text
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "response_format": {"type": "text"},
        "min_tokens": 0,
        "use_beam_search": False,
        "stop": [],
        "modalities": ["text"],
    }
    assert client.post("/v1/chat/completions", json={**chat_body, **neutral}).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("echo", True),
        ("best_of", 2),
        ("chat_template", "{% for _ in range(10**9) %}x{% endfor %}"),
    ],
)
def test_c109_c148_what_is_not_supported_is_refused_by_name(
    server: Any, chat_body: Any, name: str, value: Any
) -> None:
    answer = server.http().post("/v1/chat/completions", json={**chat_body, name: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert "not supported" in error["message"]
    assert name in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"5": 1, "7": -100}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("repetition_penalty", 1.1),
        ("bad_words", ["x", " y"]),
        ("allowed_token_ids", [1, 2]),
        ("min_tokens", 2),
        ("response_format", {"type": "json_object"}),
        ("response_format", schema_format({})),
        ("response_format", schema_format({"oneOf": [{"const": 1}, {"const": 2}]})),
        ("structured_outputs", {"choice": ["yes", "no"]}),
        ("structured_outputs", {"json": {"type": "integer"}}),
        ("guided_regex", "[a-z]+"),
        ("guided_json", '{"type": "string"}'),
    ],
)
def test_what_changes_logits_is_taken(server: Any, chat_body: Any, name: str, value: Any) -> None:
    body = {**chat_body, "max_tokens": 3, name: value}
    assert server.http().post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("logit_bias", {"99999999": 5}, "token 99999999, which is not in the vocabulary"),
        ("logit_bias", {"-1": 5}, "token -1, which is not in the vocabulary"),
        ("logit_bias", {"abc": 5}, "given by their ids"),
        ("logit_bias", {"²": 5}, "given by their ids"),
        ("logit_bias", {"5": 101}, "between -100 and 100"),
        ("logit_bias", {str(i): 1 for i in range(2000)}, "at most 1024"),
        ("presence_penalty", 2.1, "between -2 and 2"),
        ("frequency_penalty", -2.1, "between -2 and 2"),
        ("repetition_penalty", 0, "above 0"),
        ("bad_words", [""], "not empty"),
        ("bad_words", ["x"] * 129, "at most 128"),
        ("allowed_token_ids", [], "at least one id"),
        ("allowed_token_ids", [5, 4000], "token 4000"),
        ("min_tokens", -1, "between 0 and max_tokens"),
        ("min_tokens", 9, "between 0 and max_tokens (3)"),
        ("structured_outputs", {"regex": "["}, "unclosed character class"),
        ("structured_outputs", {"json": {"type": "foo"}}, "Invalid type: foo"),
        ("structured_outputs", {"json": "{"}, "the schema is not JSON"),
        ("structured_outputs", {"grammar": "start: nosuch"}, "unknown name"),
        ("structured_outputs", {"choice": []}, "between 1 and 1000"),
        ("structured_outputs", {}, "has nothing"),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}, "has regex and choice"),
        ("response_format", {"type": "yaml"}, "json_schema"),
        ("response_format", {"type": "json_schema"}, "json_schema with a json_schema"),
        ("response_format", schema_format(False), "which nothing fits"),
        ("response_format", schema_format({"$ref": "#/$defs/no"}), "response_format: Pointer"),
        ("guided_json", {"type": "foo"}, "guided_json: Invalid type"),
        ("prompt_embeds", "AAAA", "leave it out"),
        # What they hold may be long, and is the client's own.
        ("logit_bias", {str(i): 101 for i in range(500)}, "logit_bias is a list of 500, but"),
        ("bad_words", ["mine", ""], "bad_words is a list of 2, but"),
    ],
)
def test_c060_what_cannot_be_is_refused_and_disturbs_nobody(
    server: Any, chat_body: Any, name: str, value: Any, said: str
) -> None:
    client = server.http()
    body = {**chat_body, "max_tokens": 3, name: value}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert said in error["message"]
    assert client.post("/v1/chat/completions", json=chat_body).status_code == 200


def test_c148_no_template_inside_the_template_arguments(server: Any, chat_body: Any) -> None:
    client = server.http()
    evil = {"chat_template_kwargs": {"chat_template": "x"}}
    assert client.post("/v1/chat/completions", json={**chat_body, **evil}).status_code == 400
    fine = {"chat_template_kwargs": {"enable_thinking": False}}
    assert client.post("/v1/chat/completions", json={**chat_body, **fine}).status_code == 200


def test_c110_text_parts_are_joined_and_images_refused(server: Any) -> None:
    def prompt_tokens(content: Any) -> Any:
        body = {"model": "tiny", "max_tokens": 1}
        body["messages"] = [{"role": "user", "content": content}]
        return server.http().post("/v1/chat/completions", json=body).json()

    parts = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
    plain = prompt_tokens("tell me a riddle")["usage"]
    joined = prompt_tokens(parts)["usage"]
    assert joined["prompt_tokens"] == plain["prompt_tokens"]
    assert joined["prompt_tokens_details"]["cached_tokens"] == plain["prompt_tokens"] - 1
    refused = prompt_tokens([parts[0], {"type": "refusal", "refusal": "riddle"}])["usage"]
    assert refused == {**joined, "prompt_tokens_details": refused["prompt_tokens_details"]}
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    assert prompt_tokens([image])["error"]["param"] == "messages"


def test_c111_developer_is_system_and_unknown_roles_are_refused(server: Any) -> None:
    def ask(role: str) -> Any:
        body = {"model": "tiny", "max_tokens": 1}
        body["messages"] = [{"role": role, "content": "be brief"}, *USER]
        return server.http().post("/v1/chat/completions", json=body)

    assert (
        ask("developer").json()["usage"]["prompt_tokens"]
        == ask("system").json()["usage"]["prompt_tokens"]
    )
    assert ask("banana").status_code == 400


@pytest.mark.parametrize("writes_bos", [True, False])
def test_c129_one_bos_whether_or_not_the_template_writes_it(
    start_server: Any, writes_bos: bool
) -> None:
    template = "{{ bos_token if writes else '' }}{{ messages[0].content }}"
    server = start_server(template=template.replace("writes", str(writes_bos)))
    answer = server.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "abc"}], max_tokens=1
    )
    assert answer.usage.prompt_tokens == 4


def test_c131_without_a_template_chat_is_refused_with_advice(start_server: Any) -> None:
    server = start_server(template=None)
    body = {"model": "tiny", "messages": USER}
    answer = server.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]
    raw = server.client().completions.create(model="tiny", prompt="hi", max_tokens=2)
    assert raw.usage.completion_tokens == 2


def test_continuing_the_last_message(server: Any, chat_body: Any) -> None:
    client = server.http()
    messages = [*USER, {"role": "assistant", "content": "ab"}]
    body = {**chat_body, "messages": messages, "continue_final_message": True}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.json()["usage"]["prompt_tokens"] == 1 + len("[user]hi\n[assistant]ab")
    both = client.post("/v1/chat/completions", json={**body, "add_generation_prompt": True})
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "continue_final_message"


def test_c014_cache_salt_separates_tenants(server: Any, chat_body: Any) -> None:
    client = server.http()

    def cached(**extra: Any) -> int:
        answer = client.post("/v1/chat/completions", json={**chat_body, **extra}).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="b") == 0
    assert cached() == 0
    assert cached(cache_salt="a") > 0
    empty = client.post("/v1/chat/completions", json={**chat_body, "cache_salt": ""})
    assert empty.status_code == 400
    assert empty.json()["error"]["param"] == "cache_salt"
