"""/v1/completions."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.core.step import TokenLogprobs
from looseleaf.server.completions import best_samples


@pytest.mark.parametrize(
    ("prompt", "num_tokens"),
    [
        ([1, 45, 222], [3]),
        ([[1, 2], [3, 4]], [2, 2]),
        (["a", "bc"], [2, 3]),  # and the BOS that a text gets
        ("abc", [4]),
        ("<|bos|>abc", [4]),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_c102_forms_of_prompts(server: Any, prompt: Any, num_tokens: list[int], n: int) -> None:
    completion = server.client().completions.create(
        model="tiny", prompt=prompt, n=n, max_tokens=4, seed=3
    )
    assert [choice.index for choice in completion.choices] == list(range(len(num_tokens) * n))
    assert completion.usage.prompt_tokens == sum(num_tokens)
    assert completion.usage.completion_tokens == 4 * n * len(num_tokens)
    for index, choice in enumerate(completion.choices):
        first = (num_tokens[index // n] + index % n) % 26
        assert choice.text == "".join(chr(97 + (first + i) % 26) for i in range(4))


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        [[1], []],
        [259],
        [-1],
        [10**30],
        [True],
        [1.5],
        [[1], "a"],
        ["a", 1],
        {},
        5,
        [[[1]]],
    ],
)
def test_c102_wrong_prompts(server: Any, prompt: Any) -> None:
    answer = server.http().post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_c076_without_max_tokens_there_are_sixteen(server: Any) -> None:
    for extra in ({}, {"max_tokens": None}):
        body = {"model": "tiny", "prompt": "x", **extra}
        answer = server.http().post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["object"] == "text_completion"


def test_c075_a_prompt_that_fills_the_context_can_only_be_scored(server: Any) -> None:
    body = {"model": "tiny", "prompt": [5] * 512, "echo": True}
    client = server.http()
    scored = client.post("/v1/completions", json={**body, "max_tokens": 0})
    assert scored.status_code == 200
    assert scored.json()["choices"][0]["finish_reason"] == "length"
    refused = client.post("/v1/completions", json={**body, "max_tokens": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].count("512") == 2
    one_less = client.post(
        "/v1/completions", json={"model": "tiny", "prompt": [5] * 511, "max_tokens": 9}
    ).json()
    assert one_less["usage"]["completion_tokens"] == 1
    assert one_less["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_c073_echo_scores_the_prompt(server: Any, stream: bool) -> None:
    body = {
        "model": "tiny",
        "prompt": "hello",
        "echo": True,
        "logprobs": 0,
        "max_tokens": 0,
        "stream": stream,
    }
    if stream:
        chunks = list(
            server.client().completions.create(
                model="tiny", prompt="hello", echo=True, logprobs=0, max_tokens=0, stream=True
            )
        )
        choices = [chunk.choices[0].model_dump() for chunk in chunks]
        assert choices[-1]["finish_reason"] == "length"
        choice = choices[0]
    else:
        answer = server.http().post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 0
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
    assert choice["text"] == "hello"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<|bos|>", "h", "e", "l", "l", "o"]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["token_logprobs"]) == 6


@pytest.mark.parametrize(
    ("prompt", "extra", "text", "offsets"),
    [
        ("<|im_end|>hi", {}, "<|im_end|>hi", [0, 0, 10, 11, 12]),
        ("<|bos|>hi", {}, "<|bos|>hi", [0, 7, 8, 9]),
        ("a<|im_end|>b", {"add_special_tokens": False}, "a<|im_end|>b", [0, 1, 11, 12]),
        ("é😀x", {}, "é😀x", [0, 0, 0, 1, 1, 1, 1, 2, 3]),
        ([256, 257, 104], {}, "h", [0, 0, 0, 1]),
        ([257, 104], {"skip_special_tokens": False}, "<|im_end|>h", [0, 10, 11]),
        ([104, 0xC3], {}, "h\ufffd", [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_c073_offsets_are_those_of_the_echoed_text(
    server: Any, prompt: Any, extra: Any, text: str, offsets: list[int], stream: bool
) -> None:
    body = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2}
    answer = server.http().post("/v1/completions", json={**body, **extra, "stream": stream})
    lines = answer.text.split("\n\n")[:-2] if stream else [answer.text]
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    output = "".join(choice["text"] for choice in choices)
    assert output[:-2] == text
    assert [offset for entry in lists for offset in entry["text_offset"]] == [
        *offsets,
        offsets[-1] + 1,
    ]
    assert offsets[-1] == len(text)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_the_most_likely_tokens(server: Any, stream: bool) -> None:
    """As evaluation harnesses ask for them; the executor lists a token and those after it."""
    body = {"model": "tiny", "prompt": "hi", "echo": True, "logprobs": 2, "max_tokens": 0}
    answer = server.http().post("/v1/completions", json={**body, "stream": stream})
    line = answer.text.split("\n\n")[0] if stream else answer.text
    logprobs = json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<|bos|>", "h", "i"]
    assert logprobs["top_logprobs"][0] is None
    assert [list(top) for top in logprobs["top_logprobs"][1:]] == [["h", "i"], ["i", "j"]]


def test_the_best_of_several(server: Any) -> None:
    client = server.http()
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 3, "n": 2, "best_of": 4}
    answer = client.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == 4 * 3
    for wrong, said in (
        ({"best_of": 1}, "at least n, which is 2"),
        ({"stream": True}, "cannot be streamed"),
        ({"best_of": 999}, "best_of is 999, but it must be between 1 and 128"),
    ):
        refused = client.post("/v1/completions", json=body | wrong)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "best_of"
        assert said in refused.json()["error"]["message"]


def test_the_best_are_the_likeliest_on_average() -> None:
    def made(index: int, *logprobs: float) -> Any:
        entries = [TokenLogprobs(value) for value in logprobs]
        return SimpleNamespace(index=index, logprobs=entries)

    samples = [made(0, -1, -3), made(1, -1.5), made(2), made(3, -1, -1, -2), made(4, -1.5)]
    assert [s.index for s in best_samples(samples, 3)] == [3, 1, 4]
    assert best_samples(samples, 5) == samples


def test_echo_of_token_ids_and_output(server: Any) -> None:
    body = {"model": "tiny", "prompt": [104, 105], "echo": True, "max_tokens": 3}
    answer = server.http().post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "hi" + "cde"


def test_logprobs_lists(server: Any) -> None:
    completion = server.client().completions.create(
        model="tiny", prompt="hi", max_tokens=3, logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs.tokens == ["d", "e", "f"]
    assert logprobs.token_logprobs == [-1.0] * 3
    assert logprobs.top_logprobs[0] == {"d": -1.0, "e": -2.0}
    assert logprobs.text_offset == [0, 1, 2]


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("tools", [1])])
def test_not_supported(server: Any, name: str, value: Any) -> None:
    answer = server.http().post(
        "/v1/completions", json={"model": "tiny", "prompt": "x", name: value}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_c150_limits_are_checked_before_anything_is_made(server: Any) -> None:
    client = server.http()
    for body, param in (
        ({"prompt": "x", "n": 5_000_000}, "n"),
        ({"prompt": "x", "n": 2**62}, "n"),
        ({"prompt": "x", "n": 10**30}, "n"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "n": -1}, "n"),
        ({"prompt": ["x"] * 1000, "n": 128}, "prompt"),
        ({"prompt": "x", "logprobs": 10**9}, "logprobs"),
        ({"prompt": "x", "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "best_of": 10**9}, "best_of"),
        ({"prompt": "x", "top_k": -5}, "top_k"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "top_p": 1.5}, "top_p"),
        ({"prompt": "x", "temperature": -0.1}, "temperature"),
    ):
        answer = client.post("/v1/completions", json={"model": "tiny", **body})
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param, answer.text


def test_c057_c059_neutral_sampling_values(server: Any) -> None:
    client = server.http()
    for extra in (
        {"top_p": 1.0},
        {"top_p": 0},
        {"temperature": 0, "top_p": 0.95},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 10**6},
        {"seed": -1},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
    ):
        body = {"model": "tiny", "prompt": "x", **extra}
        assert client.post("/v1/completions", json=body).status_code == 200, extra


def test_c151_stop_lists_are_bounded(server: Any) -> None:
    client = server.http()
    for extra, param in (
        ({"stop": ["x"] * 500_000}, "stop"),
        ({"stop": "x" * 10**6}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop_token_ids": list(range(10_000))}, "stop_token_ids"),
        ({"bad_words": ["x"] * 50_000}, "bad_words"),
    ):
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x", **extra})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert len(answer.content) < 2000


def test_c037_a_prompt_that_never_fits_is_refused_and_the_next_is_served(
    start_server: Any,
) -> None:
    server = start_server(num_blocks=8, block_size=4, max_model_len=512)
    client = server.http()
    answer = client.post(
        "/v1/completions", json={"model": "tiny", "prompt": ["x", [5] * 100], "max_tokens": 1}
    )
    assert answer.status_code == 400
    answer = client.post(
        "/v1/completions", json={"model": "tiny", "prompt": [[5], [5] * 100], "max_tokens": 1}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    small = client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 3})
    assert small.json()["usage"]["completion_tokens"] == 3
