"""Perplexity against the same figures worked out otherwise."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pvariance

import numpy as np
import pytest

from looseleaf import LLM, ConfigError, LooseleafError, SamplingParams
from looseleaf.bench.perplexity import (
    Scores,
    Window,
    comparison,
    cut_windows,
    evaluate,
    summary,
)
from looseleaf.compiled import compiled
from looseleaf.engine.settings import EngineSettings
from looseleaf.text.tokenizer import Tokenizer
from looseleaf.weights.gguf import GGUFFile

TEXT = "".join(random.Random(1).choices("abcdefgh .\n", k=1000))


def nothing() -> None:
    pass


def tokenizer_of(path: Path, *, add_bos: bool = False) -> Tokenizer:
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file.metadata | {"tokenizer.ggml.add_bos_token": add_bos})


def windows_of(path: Path, context: int, max_tokens: int = 20_000) -> list[Window]:
    return cut_windows(tokenizer_of(path), TEXT, context=context, max_tokens=max_tokens)


def expected_nll(path: Path, windows: Sequence[Window], executor: str) -> list[float]:
    """Through the engine: tokens of the second half but for the one that begins it."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=True)
    with LLM(str(path), executor=executor, kv_cache_memory=2**20) as llm:
        outputs = llm.generate([list(window) for window in windows], params)
    nll = []
    for output in outputs:
        assert output.prompt_logprobs is not None
        scored = output.prompt_logprobs[len(output.prompt_token_ids) // 2 + 1 :]
        nll.extend(-x for x in scored if x is not None)
    return nll


@pytest.mark.parametrize("context", [8, 9, 64, 257, 400])
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_scores_are_those_of_the_engine(tiny_model: Path, context: int, executor: str) -> None:
    if executor == "native" and compiled() is None:
        pytest.skip("the compiled part is not installed")
    windows = windows_of(tiny_model, context)
    expected = expected_nll(tiny_model, windows, executor)
    settings = EngineSettings(model=str(tiny_model), executor=executor, threads=2)
    told: list[None] = []
    scores = evaluate(settings, windows, lambda: told.append(None))
    assert len(told) == len(windows)
    assert len(scores.nll) == len(windows) * (context - 1 - context // 2) == len(expected)
    assert scores.nll == pytest.approx(expected, abs=1e-4)
    figures = summary(scores)
    assert list(figures) == ["perplexity", "standard_error", "mean_nll"]
    assert figures["mean_nll"] == pytest.approx(mean(expected), abs=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(mean(expected)), rel=1e-4)
    error = math.sqrt(pvariance(expected) / (len(expected) - 1)) * math.exp(mean(expected))
    assert figures["standard_error"] == pytest.approx(error, rel=1e-3)


def test_the_most_likely_tokens_are_those_of_greedy_sampling(tiny_model: Path) -> None:
    (window,) = windows_of(tiny_model, 16, max_tokens=16)
    settings = EngineSettings(model=str(tiny_model))
    scores = evaluate(settings, [window], nothing)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        outputs = llm.generate([window[: i + 1] for i in range(8, 15)], params)
    assert scores.most_likely.tolist() == [o.outputs[0].token_ids[0] for o in outputs]


@pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
def test_two_executors_compare(tiny_model: Path) -> None:
    windows = windows_of(tiny_model, 64)
    scores = [
        evaluate(EngineSettings(model=str(tiny_model), executor=name), windows, nothing)
        for name in ("native", "reference")
    ]
    found = comparison(*scores)
    assert found["perplexity"] == scores[1].perplexity
    assert found["ratio"] == pytest.approx(1, abs=1e-3)
    assert found["same_most_likely"] > 0.99


def test_scores_by_hand() -> None:
    scores = Scores(np.array([1.0, 2.0, 3.0]), np.array([5, 6, 7]))
    assert scores.perplexity == pytest.approx(math.exp(2))
    assert scores.standard_error == pytest.approx(math.exp(2) * math.sqrt(2 / 3 / 2))
    other = Scores(np.array([1.0, 1.0, 1.0]), np.array([5, 6, 8]))
    assert comparison(scores, other) == {
        "perplexity": pytest.approx(math.e),
        "standard_error": 0,
        "mean_nll": 1,
        "ratio": pytest.approx(math.e),
        "same_most_likely": pytest.approx(2 / 3),
    }


def test_windows_follow_each_other_and_the_rest_is_dropped(tiny_model: Path) -> None:
    ids = tokenizer_of(tiny_model).encode(TEXT, add_special=False, parse_special=False)
    windows = windows_of(tiny_model, 100)
    assert len(windows) == len(ids) // 100
    assert [token_id for window in windows for token_id in window] == ids[: 100 * len(windows)]
    assert windows_of(tiny_model, 100, max_tokens=399) == windows[:3]
    assert windows_of(tiny_model, 100, max_tokens=400) == windows[:4]


def test_bos_takes_the_place_of_first_tokens(tiny_model: Path) -> None:
    tokenizer = tokenizer_of(tiny_model, add_bos=True)
    bos = tokenizer.bos_token_id
    ids = tokenizer.encode(TEXT, add_special=True, parse_special=False)
    assert ids[0] == bos
    windows = cut_windows(tokenizer, TEXT, context=50, max_tokens=10_000)
    for index, window in enumerate(windows):
        assert window == [bos, *ids[50 * index + 1 : 50 * index + 50]]


def test_text_that_spells_a_control_token_is_plain(tiny_model: Path) -> None:
    tokenizer = tokenizer_of(tiny_model, add_bos=True)
    (window,) = cut_windows(tokenizer, "<|start|>", context=10, max_tokens=10)
    assert window == [tokenizer.bos_token_id, *b"<|start|>"]


def test_what_cannot_be_cut_is_refused(tiny_model: Path) -> None:
    tokenizer = tokenizer_of(tiny_model)
    with pytest.raises(LooseleafError, match="has 3 tokens, but one window takes 16"):
        cut_windows(tokenizer, "abc", context=16, max_tokens=100)
    with pytest.raises(LooseleafError, match="has 0 tokens"):
        cut_windows(tokenizer, "", context=16, max_tokens=100)
    with pytest.raises(ConfigError, match="context is 7, but it must be at least 8"):
        cut_windows(tokenizer, TEXT, context=7, max_tokens=100)
    with pytest.raises(ConfigError, match="max_tokens is 15, but one window takes 16"):
        cut_windows(tokenizer, TEXT, context=16, max_tokens=15)
