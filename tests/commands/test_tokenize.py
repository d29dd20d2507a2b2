"""`looseleaf tokenize`: the tokens of standard input, taken exactly as it is."""

import json
from pathlib import Path
from typing import Any

import pytest

KEYS = ["count", "max_model_len", "tokens", "token_strs"]


@pytest.fixture
def tokenize(call, tiny_model: Path) -> Any:
    def run(*options: str, stdin: bytes = b"") -> Any:
        return call("tokenize", "--model", str(tiny_model), *options, stdin=stdin)

    return run


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (b"", []),
        (b"a", [97]),
        (b"a\n", [97, 10]),
        (b"\n\n", [10, 10]),
        (b"a\r\nb\r\n", [97, 13, 10, 98, 13, 10]),
        (b"a\rb", [97, 13, 98]),
        (b"a\x00\x1ab", [97, 0, 26, 98]),
        (" \ufeffé\u2028".encode(), [32, 0xEF, 0xBB, 0xBF, 0xC3, 0xA9, 0xE2, 0x80, 0xA8]),
        (b"the he", [116, 258, 32, 258]),
    ],
)
def test_text_is_taken_exactly(tokenize, given: bytes, tokens: list[int]) -> None:
    answer = tokenize("--json", stdin=given).json
    assert list(answer) == KEYS
    assert answer["tokens"] == tokens
    assert answer["count"] == len(tokens) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512


def test_special_tokens_are_parsed_unless_told_otherwise(tokenize) -> None:
    given = b"<|start|>a<|end|>"
    answer = tokenize("--json", stdin=given).json
    assert answer["tokens"] == [256, 97, 257]
    assert answer["token_strs"] == ["<|start|>", "a", "<|end|>"]
    assert tokenize("--json", "--parse-special", stdin=given).json == answer
    assert tokenize("--json", "--no-parse-special", stdin=given).json["tokens"] == list(given)
    assert tokenize("--json", "--no-add-special", stdin=given).json == answer


def test_people_get_a_token_on_each_line(tokenize) -> None:
    outcome = tokenize(stdin=b"he\n")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "     258  'he'\n      10  'Ċ'\n2 tokens\n"
    assert tokenize(stdin=b"").out == "0 tokens\n"


def test_messages_become_the_models_prompt(tokenize) -> None:
    messages = [
        {"role": "system", "content": "é"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ]
    answer = tokenize("--messages", "--json", stdin=json.dumps(messages).encode()).json
    assert list(answer) == [*KEYS, "prompt"]
    prompt = "<|start|>system\né<|end|>\n<|start|>user\na<|end|>\n<|start|>assistant\n"
    assert answer["prompt"] == prompt
    assert answer["tokens"] == tokenize("--json", stdin=prompt.encode()).json["tokens"]
    assert answer["tokens"][0] == 256


def test_a_real_process_takes_bytes_as_they_are(spawn, tiny_model: Path) -> None:
    command = ("tokenize", "--model", str(tiny_model), "--json")
    outcome = spawn(*command, stdin="é\r\n".encode())
    assert outcome.err == ""
    assert outcome.json["tokens"] == [0xC3, 0xA9, 13, 10]
    assert spawn(*command).json["tokens"] == []
