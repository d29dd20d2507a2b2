"""Structured output on a tiny model of random weights: only the grammar makes sense of it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from looseleaf import LLM, LooseleafError, SamplingParams, StructuredOutputs

MakeLLM = Callable[..., LLM]

SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["ok", "size", "count"],
    "additionalProperties": False,
}


def asked(seed: int = 1, **how: Any) -> SamplingParams:
    structured = StructuredOutputs(**how)
    return SamplingParams(seed=seed, max_tokens=300, n=3, structured_outputs=structured)


def texts(llm: LLM, params: SamplingParams, prompts: Any = ("hello",)) -> list[str]:
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    assert all(s.finish_reason == "stop" for output in outputs for s in output.outputs)
    return [sample.text for output in outputs for sample in output.outputs]


def test_json_of_a_schema(make_llm: MakeLLM) -> None:
    llm = make_llm()
    for how in ({"json": SCHEMA}, {"json": json.dumps(SCHEMA)}):
        for text in texts(llm, asked(**how)):
            value = json.loads(text)
            assert value.keys() == {"ok", "size", "count"}
            assert type(value["ok"]) is bool
            assert value["size"] in ("small", "large")
            assert 0 <= value["count"] <= 99


def test_a_regex_matches_all_of_it(make_llm: MakeLLM) -> None:
    for text in texts(make_llm(), asked(regex="(cat|dog)s?: [0-9]{3}-[a-f]{2}")):
        assert re.fullmatch("(cat|dog)s?: [0-9]{3}-[a-f]{2}", text)


def test_one_of_the_choices(make_llm: MakeLLM) -> None:
    choices = ('say "yes"', "no\\maybe", "né")
    params = SamplingParams(
        n=16, seed=2, temperature=3, structured_outputs=StructuredOutputs(choice=choices)
    )
    assert set(texts(make_llm(), params)) == set(choices)


def test_the_end_of_a_grammar_is_the_end(make_llm: MakeLLM) -> None:
    """Also for those who want to go on through end tokens: nothing else could follow."""
    structured = StructuredOutputs(choice=("yes", "no"))
    params = SamplingParams(seed=1, max_tokens=20, ignore_eos=True, structured_outputs=structured)
    (output,) = make_llm().generate(["hello"], params, use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")
    assert output.outputs[0].finish_reason == "stop"


def test_a_grammar_of_lark(make_llm: MakeLLM) -> None:
    grammar = 'start: item "," item\nitem: /[a-c]{2}/ | "(" item ")"'
    for text in texts(make_llm(), asked(grammar=grammar, seed=4)):
        assert re.fullmatch(r"\(*[a-c]{2}\)*,\(*[a-c]{2}\)*", text)
        for item in text.split(","):
            assert item.count("(") == item.count(")")


def test_company_chunks_cache_and_preemption_change_nothing(make_llm: MakeLLM) -> None:
    prompts = ["abc abc abc", "hello there", "zzzz", "abc abd"]
    params = asked(regex="[a-z]{8,20}(, [0-9]{2}){3}")
    plain = make_llm(enable_prefix_caching=False)
    alone = [text for prompt in prompts for text in texts(plain, params, [prompt])]
    assert texts(plain, params, prompts) == alone
    assert texts(make_llm(max_num_batched_tokens=5, max_num_seqs=5), params, prompts) == alone
    tight = make_llm(block_size=8, kv_cache_memory=12 * 8 * 300)
    assert texts(tight, params, prompts) == alone
    assert tight.engine.scheduler.counters.preemptions > 0
    tight.generate(["x"], SamplingParams(max_tokens=1), use_tqdm=False)
    assert not tight.engine.executor._grammars._states  # those that have ended are forgotten


def test_what_cannot_be_followed_ends_alone(make_llm: MakeLLM) -> None:
    """Only a token that the grammar does not allow is allowed."""
    llm = make_llm()
    impossible = SamplingParams(
        structured_outputs=StructuredOutputs(regex="[0-9]+"), allowed_token_ids=frozenset({100})
    )
    plain = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    one, other = llm.generate(["a", "b"], [impossible, plain], use_tqdm=False)
    assert one.outputs[0].finish_reason == "error"
    assert len(other.outputs[0].token_ids) == 5


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"regex": "["}, "structured_outputs: .*unclosed"),
        ({"json": {"type": "foo"}}, "structured_outputs: Invalid type"),
        ({"json": "nonsense"}, "not JSON"),
        ({"json": "3"}, "a schema is a JSON object"),
        ({"grammar": "start: other"}, "unknown name"),
        ({"choice": ()}, "between 1 and 1000"),
        ({"regex": "a" * 300_000}, "at most 200000"),
    ],
)
def test_what_is_no_grammar_is_refused(make_llm: MakeLLM, how: Any, said: str) -> None:
    with pytest.raises(LooseleafError, match=said):
        make_llm().generate(["x"], asked(**how), use_tqdm=False)


def test_exactly_one_form() -> None:
    with pytest.raises(LooseleafError, match="has nothing"):
        StructuredOutputs()
    with pytest.raises(LooseleafError, match="has json and regex"):
        StructuredOutputs(json={}, regex="a")


def test_what_the_grammar_forces_takes_no_step_of_its_own(make_llm: MakeLLM) -> None:
    how = {"choice": ("a long answer without a choice", "b is another one of that kind")}
    llm = make_llm()
    params = asked(**how)
    (output,) = llm.generate(["hello"], params, use_tqdm=False)
    assert {sample.text for sample in output.outputs} <= set(how["choice"])
    num_tokens = max(len(sample.token_ids) for sample in output.outputs)
    steps = llm.engine.scheduler.counters.steps
    assert steps < num_tokens // 4
    # Whoever asks how likely each token was gets to know it, and the same answers.
    (scored,) = llm.generate(["hello"], replace(params, logprobs=1), use_tqdm=False)
    assert [sample.text for sample in scored.outputs] == [s.text for s in output.outputs]
    assert llm.engine.scheduler.counters.steps - steps >= num_tokens
    assert all(s.logprobs and None not in s.logprobs for s in scored.outputs)


def test_forced_tokens_end_where_the_request_does(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = SamplingParams(
        max_tokens=5, structured_outputs=StructuredOutputs(choice=("abcdefghijkl",))
    )
    (output,) = llm.generate(["hello"], params, use_tqdm=False)
    (sample,) = output.outputs
    assert (sample.text, sample.finish_reason, len(sample.token_ids)) == ("abcde", "length", 5)
    stopping = SamplingParams(
        max_tokens=50, stop=("fg",), structured_outputs=StructuredOutputs(choice=("abcdefghijkl",))
    )
    (output,) = llm.generate(["hello"], stopping, use_tqdm=False)
    (sample,) = output.outputs
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("abcde", "stop", "fg")
