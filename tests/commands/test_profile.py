"""`--profile` of `generate` and `bench`: where the time of the native executor went."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_gguf import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS

from looseleaf.compiled import compiled

native = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
measured = pytest.mark.skipif(
    not hasattr(compiled(), "peak_int8_madds"), reason="the compiled part has no such measurements"
)

VOCABULARY = 259
LAYER_MADDS = (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM * HIDDEN + 3 * FFN * HIDDEN
AFTER_ATTENTION = HEADS * HEAD_DIM * HIDDEN + 3 * FFN * HIDDEN
"""Multiply-adds of a layer, which the last one does only where a token is drawn."""
PASSES = {"embed", "norm", "project", "rope", "attention", "sampled_rows", "silu_mul", "logits"}
"""Of a model in float32; where weights are quantized, `silu_mul` is part of the product."""

GREEDY = ("--prompt", "hello there", "--max-tokens", "12", "--ignore-eos")
PEAKS = {"int8_madds": 4e9, "f32_madds": 1e9, "bytes": 2e9}


@pytest.fixture
def fake_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that multiplies and adds floats in a nanosecond, and reads two bytes meanwhile."""
    fake = SimpleNamespace(
        read_bandwidth=lambda num_bytes, threads: 2e9,
        peak_int8_madds=lambda threads: 4e9,
        peak_f32_flops=lambda threads: 2e9,
    )
    monkeypatch.setattr("looseleaf.bench.profile.kernels", lambda: fake)


def check_profile(profile: dict[str, Any]) -> None:
    """Both tables are of the same work, and every figure follows from the others."""
    assert list(profile) == ["peaks", "by_op", "by_layer"]
    assert {one["name"] for one in profile["by_op"]} == PASSES
    assert [one["layer"] for one in profile["by_layer"]] == [*range(LAYERS), None]
    peaks = profile["peaks"]
    assert peaks.keys() == PEAKS.keys()
    assert min(peaks.values()) > 0
    for name in ("calls", "int8_madds", "int16_madds", "f32_madds", "bytes"):
        sums = [sum(one[name] for one in profile[table]) for table in ("by_op", "by_layer")]
        assert sums[0] == sums[1], name
    sums = [sum(one["seconds"] for one in profile[table]) for table in ("by_op", "by_layer")]
    assert sums[0] == pytest.approx(sums[1])
    for one in profile["by_op"] + profile["by_layer"]:
        assert one["seconds"] > 0
        rates = peaks | {"int16_madds": peaks["int8_madds"] / 2}
        arithmetic = sum(one[n] / rates[n] for n in ("int8_madds", "int16_madds", "f32_madds"))
        bound = max(arithmetic, one["bytes"] / peaks["bytes"])
        assert one["bound_s"] == pytest.approx(bound)
        assert one["share_of_roofline"] == pytest.approx(bound / one["seconds"])


def figures(profile: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in profile["by_op"] if one["name"] == name)
    return dict(found)


@native
@pytest.mark.usefixtures("fake_peaks")
@pytest.mark.parametrize(
    "dtype", ["f32", pytest.param("f16", marks=measured), pytest.param("int16", marks=measured)]
)
def test_generate_by_hand(call, tiny_model: Path, dtype: str) -> None:
    """9 tokens of prompt and 12 more, of which the last is not computed: 12 steps, 20 rows."""
    options = ("--model", str(tiny_model), *GREEDY, "--kv-cache-dtype", dtype, "--json")
    outcome = call("generate", *options, "--no-prompt-logprobs", "--profile")
    answer = outcome.json
    profile = answer.pop("profile")
    assert answer == call("generate", *options, "--no-prompt-logprobs").json
    check_profile(profile)
    assert profile["peaks"] == PEAKS
    assert figures(profile, "embed")["calls"] == 12
    assert figures(profile, "attention")["calls"] == LAYERS * 12
    assert not any(one["int8_madds"] for one in profile["by_op"])
    madds = LAYERS * LAYER_MADDS * 20 - AFTER_ATTENTION * (20 - 12)
    assert figures(profile, "project")["f32_madds"] == madds
    assert figures(profile, "logits")["f32_madds"] == VOCABULARY * HIDDEN * 12
    # The token at position p sees p + 1; a step reads the tokens so far, 9 at first and 20 at last.
    attention = figures(profile, "attention")
    name = "int16_madds" if dtype == "int16" else "f32_madds"
    assert attention[name] == LAYERS * 2 * HEADS * HEAD_DIM * sum(range(1, 21))
    rows = LAYERS * 2 * KV_HEADS * sum(range(9, 21))
    row_bytes = {"f32": 4 * HEAD_DIM, "f16": 2 * HEAD_DIM, "int16": 2 * HEAD_DIM + 4}
    assert attention["bytes"] == rows * row_bytes[dtype]
    # Weights are read once a step; packed, they may take a little more than their numbers do.
    for name, matrices in (("project", LAYERS * LAYER_MADDS), ("logits", VOCABULARY * HIDDEN)):
        least = 4 * matrices * 12
        assert least <= figures(profile, name)["bytes"] < 1.1 * least


@native
@pytest.mark.usefixtures("fake_peaks")
@pytest.mark.parametrize("n", ["1", "2"])
def test_people_get_tables_beside_the_answer(call, tiny_model: Path, n: str) -> None:
    options = ("--model", str(tiny_model), *GREEDY, "--n", n)
    plain, outcome = call("generate", *options), call("generate", *options, "--profile")
    assert (outcome.status, outcome.out) == (0, plain.out)
    assert plain.err == ""
    titles = [line.split()[0] for line in outcome.err.splitlines() if line.strip()]
    assert titles[0] == "pass"
    end = titles.index("layer")
    assert set(titles[1:end]) == PASSES
    assert titles[end : end + 4] == ["layer", "0", "1", "outside"]
    for told in (
        *("time, s", "share", "Gmadd/s", "GB/s", "of the roofline", "s in the native runtime"),
        *("4 G multiply-adds/s in 8 bits", "1 in float32", "memory is read at 2.0 GB/s"),
    ):
        assert told in outcome.err


@native
@pytest.mark.usefixtures("fake_peaks")
def test_bench(call, tiny_model: Path) -> None:
    """128 tokens of prompt and 128 more, warmed up once and measured once: the profile has both."""
    options = ("--model", str(tiny_model), "--rounds", "1")
    result = call("bench", "single", *options, "--profile", "--json").json
    check_profile(result["profile"])
    assert result["steps"] == 128
    assert figures(result["profile"], "embed")["calls"] == 2 * 128
    assert figures(result["profile"], "project")["f32_madds"] == (
        2 * (LAYERS * LAYER_MADDS * (128 + 127) - AFTER_ATTENTION * 127)
    )
    assert "profile" not in call("bench", "single", *options, "--json").json
    outcome = call("bench", "single", *options, "--profile")
    assert "first token, ms" in outcome.out
    for told in ("of the roofline", "attention", "outside", "native runtime"):
        assert told in outcome.err
        assert told not in outcome.out


@measured
def test_against_the_real_machine(call, tiny_model: Path) -> None:
    model = ("--model", str(tiny_model), "--json", "--profile")
    answer = call("generate", *model, *GREEDY).json
    check_profile(answer["profile"])
    result = call("bench", "single", *model, "--rounds", "1", "--warmup", "0").json
    check_profile(result["profile"])
    for profile in (answer["profile"], result["profile"]):
        assert profile["peaks"]["int8_madds"] > 1e8
        assert profile["peaks"]["f32_madds"] > 1e8
        assert profile["peaks"]["bytes"] > 1e8


@pytest.mark.parametrize("output", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.parametrize("command", [("generate", "--prompt", "a"), ("bench", "single")])
def test_the_reference_executor_has_no_passes(
    call, tiny_model: Path, command: tuple[str, ...], output: tuple[str, ...]
) -> None:
    options = ("--model", str(tiny_model), "--executor", "reference", "--profile", *output)
    outcome = call(*command, *options)
    outcome.check_refused("--profile", "native executor", "--executor native")
    assert outcome.out == ""


@native
def test_peaks_that_cannot_be_measured_are_said(
    call, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    """By a compiled part that is older than the package."""
    monkeypatch.setattr("looseleaf.bench.kernels.compiled", lambda: SimpleNamespace())
    outcome = call("generate", "--model", str(tiny_model), *GREEDY, "--profile", "--json")
    outcome.check_refused("lacks bench_matmul", "reinstall looseleaf")
