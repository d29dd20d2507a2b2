"""`looseleaf generate`: one prompt, from an option or from standard input, continued."""

from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM, SamplingParams

GREEDY = ("--max-tokens", "12", "--ignore-eos")
KEYS = ["prompt_token_ids", "output_token_ids", "text", "finish_reason", "usage"]


@pytest.fixture
def generate(call, tiny_model: Path) -> Any:
    def run(*options: str, stdin: bytes = b"") -> Any:
        return call("generate", "--model", str(tiny_model), *options, stdin=stdin)

    return run


def answer_of(path: Path, executor: str) -> Any:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=True)
    with LLM(str(path), executor=executor, kv_cache_memory=2**20) as llm:
        (output,) = llm.generate(["hello there"], params)
    return output


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> Any:
    """What the offline API answers."""
    return answer_of(tiny_model, "auto")


@pytest.fixture(scope="module")
def expected_of_reference(tiny_model: Path) -> Any:
    """The other executor's answer may be another: it rounds what it keeps."""
    return answer_of(tiny_model, "reference")


def test_json_is_what_the_offline_api_answers(generate, expected) -> None:
    answer = generate("--prompt", "hello there", *GREEDY, "--json").json
    assert list(answer) == [*KEYS, "prompt_logprobs"]
    (sample,) = expected.outputs
    assert answer == {
        "prompt_token_ids": list(expected.prompt_token_ids),
        "output_token_ids": list(sample.token_ids),
        "text": sample.text,
        "finish_reason": "length",
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 12,
            "total_tokens": 21,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "prompt_logprobs": list(expected.prompt_logprobs),
    }
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 9


def test_text_is_streamed_and_ends_with_a_newline(generate, expected) -> None:
    outcome = generate("--prompt", "hello there", *GREEDY)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == expected.outputs[0].text + "\n"


def test_token_ids_are_taken_as_they_are(generate, expected) -> None:
    ids = str(list(expected.prompt_token_ids))
    answer = generate("--prompt-token-ids", ids, *GREEDY, "--json").json
    assert answer["output_token_ids"] == list(expected.outputs[0].token_ids)
    # One that the tokenizer would have merged.
    answer = generate("--prompt-token-ids", "[104, 101]", *GREEDY, "--json").json
    assert answer["prompt_token_ids"] == [104, 101]


@pytest.mark.parametrize(
    ("given", "token_ids"),
    [
        (b"a", [97]),
        (b"a\n", [97, 10]),
        (b"a\r\nb\r\n", [97, 13, 10, 98, 13, 10]),
        (b"a\rb", [97, 13, 98]),
        (b"\n", [10]),
        (b" \t ", [32, 9, 32]),
        (b"a\x00b\x1a", [97, 0, 98, 26]),
        ("\ufeffé".encode(), [0xEF, 0xBB, 0xBF, 0xC3, 0xA9]),
        (b"<|start|>he", [256, 258]),
    ],
)
def test_standard_input_is_taken_exactly(generate, given: bytes, token_ids: list[int]) -> None:
    answer = generate("--max-tokens", "1", "--json", stdin=given).json
    assert answer["prompt_token_ids"] == token_ids


def test_an_option_comes_before_standard_input(generate) -> None:
    answer = generate("--prompt", "a\n", "--max-tokens", "1", "--json", stdin=b"b").json
    assert answer["prompt_token_ids"] == [97, 10]


def test_prompt_logprobs_may_be_left_out(generate) -> None:
    answer = generate("--prompt", "a", *GREEDY, "--json", "--no-prompt-logprobs").json
    assert list(answer) == KEYS


def test_samples_are_listed(generate) -> None:
    options = ("--prompt", "hello", *GREEDY, "--n", "3", "--temperature", "1", "--seed", "7")
    answer = generate(*options, "--json").json
    assert list(answer) == [*KEYS, "prompt_logprobs", "choices"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({tuple(choice["output_token_ids"]) for choice in answer["choices"]}) == 3
    for choice in answer["choices"]:
        assert list(choice) == ["index", "output_token_ids", "text", "finish_reason"]
    assert answer["text"] == answer["choices"][0]["text"]
    assert answer["output_token_ids"] == answer["choices"][0]["output_token_ids"]
    assert answer["usage"]["completion_tokens"] == 36
    # People get the same, each under its number.
    outcome = generate(*options)
    assert outcome.out == "".join(f"[{c['index']}] {c['text']}\n" for c in answer["choices"])


def test_sampling_options_arrive(generate) -> None:
    free = ("--prompt", "hello", *GREEDY, "--json", "--temperature", "1")
    first = generate(*free, "--seed", "3").json["output_token_ids"]
    assert generate(*free, "--seed", "3").json["output_token_ids"] == first
    assert generate(*free, "--seed", "4").json["output_token_ids"] != first
    greedy = generate("--prompt", "hello", *GREEDY, "--json").json["output_token_ids"]
    assert first != greedy
    for option in (("--top-k", "1"), ("--top-p", "0"), ("--min-p", "1"), ("--temperature", "0")):
        assert generate(*free, *option).json["output_token_ids"] == greedy


def test_stop_strings_and_end_tokens(generate, expected) -> None:
    text = expected.outputs[0].text
    stop = next(c for c in text if c.isalpha() and text.index(c) > 0)
    answer = generate("--prompt", "hello there", *GREEDY, "--stop", "zzz", "--stop", stop, "--json")
    assert answer.json["finish_reason"] == "stop"
    assert answer.json["text"] == text[: text.index(stop)]


def test_no_tokens_only_score_the_prompt(generate) -> None:
    answer = generate("--prompt", "hello", "--max-tokens", "0", "--json").json
    assert (answer["output_token_ids"], answer["finish_reason"]) == ([], "length")
    assert len(answer["prompt_logprobs"]) == 4


def test_the_context_ends_an_answer(generate) -> None:
    answer = generate(
        *("--prompt", "hello", "--max-tokens", "100000", "--ignore-eos", "--json"),
        *("--max-model-len", "32"),
    ).json
    assert answer["usage"]["total_tokens"] == 32
    assert answer["finish_reason"] == "length"


@pytest.mark.parametrize(
    "options",
    [
        ["--max-num-batched-tokens", "3"],
        ["--block-size", "1"],
        ["--no-enable-prefix-caching"],
        ["--enable-prefix-caching"],
        ["--kv-cache-memory", "64KiB"],
        ["--kv-allocator", "contiguous-pow2"],
        ["--scheduling-policy", "priority"],
        ["--executor", "auto"],
        ["--executor", "reference"],
        ["--threads", "1"],
        ["--threads", "3"],
        ["--activations", "f32"],  # the model's weights are not quantized
        ["--max-num-seqs", "1", "--long-prefill-token-threshold", "2"],
    ],
    ids=" ".join,
)
def test_engine_options_arrive_and_change_no_answer(
    generate,
    expected,
    expected_of_reference,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    if "reference" in options:
        expected = expected_of_reference
    answer = generate("--prompt", "hello there", *GREEDY, "--json", *options).json
    assert answer["output_token_ids"] == list(expected.outputs[0].token_ids)
    seen = {}

    def build(settings: Any) -> None:
        seen.update({name: getattr(settings, name) for name in settings.__slots__})
        raise KeyboardInterrupt

    monkeypatch.setattr("looseleaf.commands.generate.build", build)
    assert generate("--prompt", "a", *options).status == 130
    for flag, text in zip(options[::2], options[1::2], strict=False):
        value = 64 * 1024 if text == "64KiB" else int(text) if text.isdigit() else text
        assert seen[flag.removeprefix("--").replace("-", "_")] == value
    assert seen["enable_prefix_caching"] is ("--no-enable-prefix-caching" not in options)


def test_a_real_process_answers_the_same(spawn, tiny_model: Path, expected) -> None:
    outcome = spawn(
        *("generate", "--model", str(tiny_model), *GREEDY, "--json", "--temperature", "0"),
        stdin=b"hello there",
    )
    assert outcome.err == ""
    assert outcome.json["output_token_ids"] == list(expected.outputs[0].token_ids)
    assert outcome.json["text"] == expected.outputs[0].text


def test_what_changes_logits(generate, expected) -> None:
    def tokens(*options: str) -> list[int]:
        ids: list[int] = generate("--prompt", "hello there", *GREEDY, *options, "--json").json[
            "output_token_ids"
        ]
        return ids

    free = list(expected.outputs[0].token_ids)
    assert tokens("--logit-bias", "70=100") == [70] * 12
    assert set(tokens("--allowed-token-ids", "70,71")) <= {70, 71}
    assert free[0] not in tokens("--logit-bias", f"{free[0]}=-100")
    assert tokens("--repetition-penalty", "1.5", "--presence-penalty", "1") != free
    assert tokens("--min-tokens", "12", "--stop", "e") == free
    generate("--prompt", "x", "--logit-bias", "a=b").check_refused("'a=b'", "198=-5")
    generate("--prompt", "x", "--allowed-token-ids", "1;2").check_refused("'1;2'", "1,2,3")
    generate("--prompt", "x", "--logit-bias", "999=1").check_refused("logit_bias", "999", "258")


def test_beams(generate, tiny_model: Path) -> None:
    options = ("--prompt", "hello there", *GREEDY, "--beam-width", "3", "--length-penalty", "0.5")
    beams = generate(*options, "--json").json["beams"]
    assert len(beams) == 3
    assert all(len(beam["output_token_ids"]) == 12 for beam in beams)
    assert [beam["score"] for beam in beams] == sorted((b["score"] for b in beams), reverse=True)
    assert beams[0]["score"] == pytest.approx(beams[0]["cumulative_logprob"] / 12**0.5)
    lines = generate(*options).out
    assert f"[0] {beams[0]['score']:.4f} {beams[0]['text']}" in lines
    generate("--prompt", "x", "--beam-width", "11").check_refused("beam_width is 11", "10")
