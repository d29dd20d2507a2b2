"""`looseleaf plan`"""

import json
from pathlib import Path

import pytest

MODEL = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "RTX-4090")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eleven requests, the last too long for anything, and two rows that are none."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 100 * i,
            "input_length": 1000,
            "output_length": 20,
            "hash_ids": [1, 100 + i],
        }
        for i in range(10)
    ]
    rows.append({"timestamp": 2000, "input_length": 10**6, "output_length": 1, "hash_ids": []})
    lines = [json.dumps(row) for row in rows]
    lines.insert(3, "{")
    lines.append('{"timestamp": "x", "input_length": 1, "output_length": 1}')
    path.write_text("\n".join(lines))
    return path


def test_a_report(call, trace: Path) -> None:
    report = call("plan", str(trace), *MODEL, "--json").json
    summary = report["summary"]
    assert (summary["requests"], summary["refused"]) == (10, 1)
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (10_000, 200)
    assert summary["prefix_hits"] == 9 * 512
    assert 0 < summary["ttft"]["p50"] < summary["e2e"]["p50"] < 5
    assert 0.01 < summary["tpot"]["p50"] < 0.1
    assert report["trace"]["bad_rows"] == 2
    assert report["trace"]["first_bad_rows"] == [
        {"line": 4, "reason": "is not JSON"},
        {"line": 13, "reason": "timestamp is not a number of at least 0"},
    ]
    assert report["kv_cache"]["block_size"] == 16
    assert report["settings"]["max_num_seqs"] == 256
    assert "roofline" in report["cost_model"]["name"]
    assert "1000000 tokens" in report["first_refused"][0]["reason"]
    assert any("can never fit" in warning for warning in report["warnings"])


def test_for_people(call, trace: Path) -> None:
    outcome = call("plan", str(trace), *MODEL)
    assert outcome.status == 0
    for told in (
        "10 requests in",
        "time to first token",
        "46.1% of the prompt tokens found stored",
        "line 4: is not JSON",
        "warning: 1 requests can never fit",
        "roofline of",
    ):
        assert told in outcome.out
    assert "us a token" in outcome.err


def test_settings_matter(call, trace: Path) -> None:
    base = call("plan", str(trace), *MODEL, "--json").json["summary"]
    for options, worse in (
        (("--max-num-seqs", "1"), lambda s: s["waiting_peak"] > base["waiting_peak"]),
        (("--num-blocks", "70"), lambda s: s["waiting_peak"] > base["waiting_peak"]),
        (("--no-enable-prefix-caching",), lambda s: s["ttft"]["mean"] > base["ttft"]["mean"]),
        (("--bandwidth-efficiency", "0.4"), lambda s: s["tpot"]["mean"] > base["tpot"]["mean"]),
        (("--step-overhead", "0.1"), lambda s: s["tpot"]["mean"] > base["tpot"]["mean"]),
        (("--speed", "10"), lambda s: s["duration"] < base["duration"]),
        (("--limit", "2"), lambda s: s["requests"] == 2),
        (("--kv-allocator", "contiguous-max"), lambda s: s["prefix_hits"] == 0),
    ):
        assert worse(call("plan", str(trace), *MODEL, "--json", *options).json["summary"]), options


def test_lengths_alone_need_a_rate(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "300,20\n" * 50)
    call("plan", str(path), *MODEL).check_refused("--rate")
    report = call("plan", str(path), *MODEL, "--rate", "5", "--json").json
    assert report["summary"]["requests"] == 50
    assert 5 < report["summary"]["duration"] < 20
    assert any("does not say what prompts share" in w for w in report["warnings"])


def test_measured_kernels(call, shared_dir: Path) -> None:
    folder = shared_dir / "traces" / "llmservingsim"
    profile = sorted((folder / "profile").glob("*4090*_attention.csv"))[0]
    prefix = str(profile).removesuffix("_attention.csv")
    report = call(
        *("plan", str(folder / "sharegpt-300.jsonl"), *MODEL, "--limit", "30"),
        *("--kernel-profile", prefix, "--num-blocks", "2588", "--json"),
    ).json
    assert report["cost_model"]["name"].startswith("kernels of")
    assert report["summary"]["requests"] == 30
    assert 0.01 < report["summary"]["tpot"]["p50"] < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "0"), ("rate is 0",)),
        (("--speed", "-1"), ("speed is -1",)),
        (("--hardware", "abacus"), ("abacus",)),
        (("--kernel-profile", "x", "--compute-efficiency", "0.5"), ("no efficiencies",)),
        (("--compute-efficiency", "2"), ("compute_efficiency is 2",)),
    ],
)
def test_mistakes(call, trace: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    call("plan", str(trace), *MODEL, *options).check_refused(*words)


def test_a_trace_that_is_not_there(call) -> None:
    call("plan", "nowhere.jsonl", *MODEL).check_refused("nowhere.jsonl", "No such file")


def test_what_is_drawn_at_random(call, tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(
        "requests: 60\narrivals: {rate: 4}\nprompt: {exponential: 200}\noutput: 30\n"
        "turns: 3\nthink: 1\naborts: {share: 0.3, after: 5}\n"
    )
    report = call("plan", str(path), *MODEL, "--json").json
    summary = report["summary"]
    assert summary["requests"] == 60
    assert 5 < summary["aborted"] < 35
    assert summary["hit_rate"] > 0.4
    assert report["trace"]["users"] is None
    loop = call("plan", str(path), *MODEL, "--concurrency", "2", "--seed", "3", "--json").json
    assert (loop["trace"]["users"], loop["trace"]["seed"]) == (2, 3)
    assert loop["summary"]["running_peak"] <= 2
    assert "given up" in call("plan", str(path), *MODEL).out
    call("plan", str(path), *MODEL, "--rate", "1", "--concurrency", "2").check_refused("leave one")
    path.write_text("request: 5")
    call("plan", str(path), *MODEL).check_refused("did you mean requests?")


def test_lengths_from_a_cdf(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text("[[200, 0.5], [800, 1.0]]")
    command = ("plan", str(path), *MODEL, "--output-share", "0.1")
    call(*command).check_refused("--rate", "--concurrency")
    summary = call(*command, "--rate", "9", "--limit", "80", "--json").json["summary"]
    assert summary["requests"] == 80
    share = summary["output_tokens"] / (summary["output_tokens"] + summary["prompt_tokens"])
    assert 0.09 < share < 0.11


def test_a_swap_space(call, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 300, "output_length": 200}
    path.write_text("".join(json.dumps(row | {"timestamp": 50 * i}) + "\n" for i in range(12)))
    command = ("plan", str(path), *MODEL, "--num-blocks", "100", "--admission-headroom", "0")
    plain = call(*command, "--json").json
    assert plain["swap"] is None
    options = ("--swap-space", "4", "--preemption-mode", "swap")
    swapped = call(*command, *options, "--json").json
    assert swapped["swap"]["space"] == 4 * 2**30
    assert swapped["swap"]["bandwidth"] == 25.6e9
    assert swapped["swap"]["blocks_loaded"] > 10
    assert swapped["summary"]["recomputed_tokens"] < plain["summary"]["recomputed_tokens"]
    assert "blocks saved and" in call(*command, *options, "--swap-bandwidth", "10").out
    call(*command, *options, "--swap-bandwidth", "0").check_refused("swap_bandwidth is 0")
    call(*command, "--preemption-mode", "swap").check_refused("set swap_space")
