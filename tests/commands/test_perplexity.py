"""`looseleaf perplexity`: a text from a file or from standard input, scored."""

import random
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import EXECUTOR

from looseleaf.bench.perplexity import cut_windows, evaluate
from looseleaf.compiled import compiled
from looseleaf.engine.build import load_text
from looseleaf.engine.settings import EngineSettings
from looseleaf.weights.gguf import GGUFFile

TEXT = "".join(random.Random(2).choices("the quick brown fox é", k=700))
KEYS = (
    *("perplexity", "standard_error", "mean_nll", "num_scored_tokens", "num_windows", "context"),
    *("executor", "kv_cache_dtype", "activations", "model"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def perplexity(call, tiny_model: Path) -> Any:
    def run(*arguments: str, stdin: bytes = b"") -> Any:
        return call("perplexity", *arguments, "--model", str(tiny_model), stdin=stdin)

    return run


def test_json(perplexity, file: Path, tiny_model: Path) -> None:
    result = perplexity(str(file), "--context", "100", "--json").json
    assert list(result) == [*KEYS, "machine"]
    with GGUFFile(tiny_model) as model:
        tokenizer = load_text(model).tokenizer
    windows = cut_windows(tokenizer, TEXT, context=100, max_tokens=20_000)
    scores = evaluate(EngineSettings(model=str(tiny_model)), windows, lambda: None)
    assert result["perplexity"] == scores.perplexity
    assert result["standard_error"] == scores.standard_error
    assert result["num_windows"] == len(windows) >= 7
    assert result["num_scored_tokens"] == 49 * len(windows)
    assert (result["context"], result["executor"]) == (100, EXECUTOR)
    assert result["kv_cache_dtype"] == {"native": "int16", "reference": "f32"}[EXECUTOR]
    assert result["activations"] == "int8"
    assert result["model"] == str(tiny_model)


def test_standard_input_and_fewer_tokens(perplexity, file: Path) -> None:
    options = ("--context", "64", "--json")
    result = perplexity("-", *options, stdin=TEXT.encode()).json
    assert result == perplexity(str(file), *options).json
    fewer = perplexity("-", *options, "--max-tokens", "130", stdin=TEXT.encode()).json
    assert fewer["num_windows"] == 2
    assert fewer["perplexity"] != result["perplexity"]


@pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
def test_two_executors(perplexity, file: Path) -> None:
    options = (str(file), "--context", "64", "--executor", "native", "--compare", "reference")
    result = perplexity(*options, "--json").json
    assert result["executor"] == "native"
    other = result["compare"]
    assert list(other) == [
        *("executor", "perplexity", "standard_error", "mean_nll", "ratio", "same_most_likely")
    ]
    assert other["executor"] == "reference"
    assert other["ratio"] == pytest.approx(result["perplexity"] / other["perplexity"])
    assert other["ratio"] == pytest.approx(1, abs=1e-3)
    assert other["same_most_likely"] > 0.98
    outcome = perplexity(*options)
    assert (outcome.status, outcome.err) == (0, "")
    for told in (
        f"perplexity {result['perplexity']:.4f} +- {result['standard_error']:.4f}",
        f"{result['num_scored_tokens']} tokens scored in {result['num_windows']} windows of 64",
        f"perplexity {other['perplexity']:.4f}",
        "most likely token in",
    ):
        assert told in outcome.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--context", "7"], ["context is 7", "at least 8"]),
        (["--context", "513"], ["--context is 513", "512 or less"]),
        (["--max-tokens", "100"], ["max_tokens is 100", "takes 512"]),
        (["--context", "some"], ["'some'"]),
        (["--executor", "abacus"], ["'abacus'"]),
        (["--compare", "abacus"], ["'abacus'"]),
        (["--threads", "0"], ["threads is 0"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_settings_that_cannot_be(perplexity, file: Path, options, words) -> None:
    outcome = perplexity(str(file), *options)
    outcome.check_refused(*words)
    assert outcome.out == ""


def test_texts_that_cannot_be(perplexity, tmp_path: Path) -> None:
    perplexity("-", stdin=b"short").check_refused("5 tokens", "takes 512", "longer text")
    perplexity("-", stdin=b"").check_refused("0 tokens")
    perplexity("-", stdin=b"a\xff").check_refused("standard input is not UTF-8", "byte 1")
    perplexity(str(tmp_path / "none.txt")).check_refused("none.txt")
    perplexity(str(tmp_path)).check_refused(str(tmp_path))
    perplexity().check_refused("FILE")


def test_a_model_that_is_none(call, file: Path) -> None:
    call("perplexity", str(file), "--model", "smollm2-136m").check_refused("'smollm2-136m'")


@pytest.mark.skipif(compiled() is None, reason="the reference packs no weights")
def test_weights_are_kept_only_where_that_is_wanted(perplexity, file: Path, tmp_path: Path) -> None:
    options = (str(file), "--context", "64", "--max-tokens", "130")
    for flags, kept in (("--no-cache-weights",), 0), ((), 1):
        assert perplexity(*options, *flags).status == 0
        assert len(list(tmp_path.glob("cache/packed/*.looseleaf-weights"))) == kept
