"""Tokens, log-probabilities and prompts of the real model, as other implementations have them."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from looseleaf import RequestOutput, SamplingParams
from looseleaf.cli import main

pytestmark = pytest.mark.model

NUM_TOKENS = 48
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def answers(loaded: Any, greedy_cases: list[dict[str, Any]]) -> dict[str, RequestOutput]:
    """All cases in one batch, as text where there is one."""
    params = SamplingParams(
        temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5, prompt_logprobs=True
    )
    with loaded.llm(max_model_len=512, kv_cache_memory=2**29) as llm:
        prompts = [case["prompt"] or case["prompt_token_ids"] for case in greedy_cases]
        outputs = llm.generate(prompts, params)
        assert not llm.engine.has_work
    return {case["name"]: output for case, output in zip(greedy_cases, outputs, strict=True)}


def case_of(cases: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(case for case in cases if case["name"] == name)


NAMES = (
    *("plain-1", "plain-2", "code", "chat-1", "chat-2", "chat-3", "chat-4", "zh", "long"),
    *("block-16", "block-32", "single"),
)


def test_every_case_is_tested(greedy_cases: list[dict[str, Any]]) -> None:
    assert tuple(case["name"] for case in greedy_cases) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens(name: str, greedy_cases, answers: dict[str, RequestOutput]) -> None:
    case, output = case_of(greedy_cases, name), answers[name]
    assert list(output.prompt_token_ids) == case["prompt_token_ids"]
    (sample,) = output.outputs
    assert list(sample.token_ids) == case["output_token_ids"]
    assert sample.finish_reason == "length"
    assert len(sample.token_ids) == NUM_TOKENS


@pytest.mark.parametrize("name", NAMES)
def test_prompt_logprobs(name: str, greedy_cases, answers: dict[str, RequestOutput]) -> None:
    case, found = case_of(greedy_cases, name), answers[name].prompt_logprobs
    assert found[0] is None
    assert len(found) == len(case["prompt_token_ids"])
    if case["prompt_logprobs"] is None:
        assert name == "long"
    else:
        assert case["prompt_logprobs"][0] is None
        assert found[1:] == pytest.approx(case["prompt_logprobs"][1:], abs=TOLERANCE)
    assert sum(found[1:]) == pytest.approx(
        case["prompt_logprob_sum"], abs=TOLERANCE * max(1, len(found) ** 0.5)
    )


@pytest.mark.parametrize("name", NAMES)
def test_first_step_top_five(name: str, greedy_cases, answers: dict[str, RequestOutput]) -> None:
    case = case_of(greedy_cases, name)
    (sample,) = answers[name].outputs
    first = sample.logprobs[0]
    assert [token_id for token_id, _ in first.top] == [i for i, _ in case["first_step_top5"]]
    assert [value for _, value in first.top] == pytest.approx(
        [value for _, value in case["first_step_top5"]], abs=TOLERANCE
    )
    assert first.top[0] == (sample.token_ids[0], first.logprob)


@pytest.mark.parametrize("name", NAMES)
def test_gaps_to_the_second_most_likely(
    name: str, greedy_cases, answers: dict[str, RequestOutput]
) -> None:
    """Of logits, and so of log-probabilities, at each of the 48 steps."""
    (sample,) = answers[name].outputs
    gaps = [step.top[0][1] - step.top[1][1] for step in sample.logprobs]
    assert gaps == pytest.approx(case_of(greedy_cases, name)["top2_logprob_gap"], abs=2 * TOLERANCE)


@pytest.mark.parametrize("name", ["chat-1", "block-32"])
def test_the_command_line_gives_the_same(
    name: str, greedy_cases, smollm2_path: Path, answers: dict[str, RequestOutput]
) -> None:
    """The very command; one with a text, one with token ids. The file is there by now."""
    case = case_of(greedy_cases, name)
    prompt = (
        ("--prompt", case["prompt"])
        if case["prompt"] is not None
        else ("--prompt-token-ids", json.dumps(case["prompt_token_ids"]))
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "looseleaf", "generate", "--model", "smollm2-135m"),
            *("--executor", "reference", *prompt, "--max-tokens", str(NUM_TOKENS)),
            *("--temperature", "0", "--ignore-eos", "--json"),
        ],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert answer["prompt_token_ids"] == case["prompt_token_ids"]
    assert answer["output_token_ids"] == case["output_token_ids"]
    assert answer["prompt_logprobs"][1:] == pytest.approx(
        case["prompt_logprobs"][1:], abs=TOLERANCE
    )
    assert answer["text"] == answers[name].outputs[0].text
    assert answer["finish_reason"] == "length"
    num_prompt = len(case["prompt_token_ids"])
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": NUM_TOKENS,
        "total_tokens": num_prompt + NUM_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


class Tokenize:
    """`looseleaf tokenize`, by its own `main`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
    ) -> None:
        self.monkeypatch, self.capsys, self.model = monkeypatch, capsys, model

    def __call__(self, text: str, *options: str) -> dict[str, Any]:
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["tokenize", "--model", str(self.model), "--json", *options]) == 0
        return dict(json.loads(self.capsys.readouterr().out))


@pytest.fixture
def tokenize(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smollm2_path: Path, loaded
) -> Tokenize:
    # There are 160 texts, and the tokenizer takes a moment to build.
    monkeypatch.setattr("looseleaf.commands.tokenize.load_text", lambda file: loaded.text)
    return Tokenize(monkeypatch, capsys, smollm2_path)


@pytest.mark.parametrize(
    ("key", "options"),
    [("parse_special_true", []), ("parse_special_false", ["--no-parse-special"])],
)
def test_every_text_has_its_tokens(
    tokenize: Tokenize, tokenize_oracle: dict[str, Any], key: str, options: list[str]
) -> None:
    expected = tokenize_oracle[key]
    assert len(expected) == 80
    answers = {text: tokenize(text, *options) for text in expected}
    assert {text: answer["tokens"] for text, answer in answers.items()} == expected
    assert all(answer["count"] == len(expected[text]) for text, answer in answers.items())


def test_a_real_process_tokenizes_the_same(
    tokenize_oracle: dict[str, Any], smollm2_path: Path
) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n"
    for key, options in (
        ("parse_special_true", []),
        ("parse_special_false", ["--no-parse-special"]),
    ):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "looseleaf", "tokenize", "--model", "smollm2-135m"),
                *("--json", *options),
            ],
            input=text.encode(),
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads(done.stdout)["tokens"] == tokenize_oracle[key][text]


def test_chat_prompts(tokenize: Tokenize, tokenize_oracle: dict[str, Any], loaded: Any) -> None:
    cases = tokenize_oracle["chat_prompts"]
    assert len(cases) == 3
    for case in cases:
        assert loaded.text.chat_template.render(case["messages"]) == case["prompt"]
        answer = tokenize(json.dumps(case["messages"]), "--messages")
        assert answer["prompt"] == case["prompt"]
        assert answer["tokens"] == tokenize(case["prompt"])["tokens"]
