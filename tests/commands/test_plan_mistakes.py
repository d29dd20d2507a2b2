"""Numbers and files that nobody should pass to the planner, and that somebody will."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli import COMMANDS
from looseleaf.commands.plan_outputs import requests_that_fit
from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import parse_bytes
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.hf_config import shape_from_file
from looseleaf.planner.slo import parse_slo
from looseleaf.planner.trace import Trace, TraceError, TraceRequest, read_trace
from looseleaf.planner.workload_file import read_workload_file

MODEL = ("--model", "llama-3.1-8b", "--hardware", "h100")
DIGITS = "9" * 400
SWAP = ("--swap-space", "1GiB", "--swap-bandwidth")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 100, "output_length": 2}\n')
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "nan"), ("rate is nan", "above 0 and at most 1e+09")),
        (("--rate", "inf"), ("rate is inf", "at most 1e+09")),
        (("--speed", "nan"), ("speed is nan",)),
        (("--speed", "inf"), ("speed is inf",)),
        (("--limit", DIGITS), ("limit is 999", "at most 1e+09")),
        (("--concurrency", DIGITS), ("concurrency is 999", "at most 1e+09")),
        ((*SWAP, "nan"), ("swap_bandwidth is nan",)),
        ((*SWAP, "inf"), ("swap_bandwidth is inf",)),
        (("--step-overhead", "nan"), ("step_overhead is nan", "at most 3600")),
        (("--step-overhead", "inf"), ("step_overhead is inf", "at most 3600")),
        (("--compute-efficiency", "1e-300"), ("compute_efficiency is 1e-300", "1e-06")),
        (("--bandwidth-efficiency", "1e-320"), ("bandwidth_efficiency", "at least 1e-06")),
        (("--memory", "0"), ("memory is 0", "at least 1")),
        (("--memory", DIGITS), ("too large", "GiB")),
        (("--num-blocks", "9" * 30), ("blocks", "at most 16777216", "larger ones")),
        (("--replicas", "9" * 9), ("at most 16777216", "fewer replicas")),
        (("--kv-cache-memory", "1KiB"), ("kv_cache_memory to 2.0 MiB or more",)),
        (("--block-size", "1000000"), ("smaller block_size, like 16",)),
        (("--slo", f"ttft={DIGITS}"), ("ttft", "at most 1e+09 s")),
        (("--slo", "ttft=1s,ttft=2s"), ("ttft is there twice",)),
        (("--slo", "ttft=1s,ttft_p=0.5,ttft_p=0.9"), ("ttft_p is there twice",)),
        (("--price-per-hour", "2"), ("--price-per-hour is for --search",)),
        (("--output-share", "0.2"), ("output_share is for a .json", "trace.jsonl")),
        (("--hardware", ""), ("no hardware is called ''", "choose one of")),
    ],
)
def test_numbers_that_nothing_can_be(
    call, trace: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    call("plan", str(trace), *MODEL, *options, "--json").check_refused(*words)


def test_what_is_refused_does_not_count_among_what_fits() -> None:
    short, long = TraceRequest(0.0, 100, 60), TraceRequest(0.0, 10**6, 1)
    memory = MemoryPlan(num_blocks=100, block_size=16, block_bytes=1, max_model_len=1600)
    found = requests_that_fit(Trace((short, long), (), True, 512), memory)
    assert found == {"mean_tokens": 160, "at_mean": 10, "p95_tokens": 160, "at_p95": 10}


def test_files_are_not_written_over_each_other(call, trace: Path) -> None:
    before = trace.read_text()
    page = str(trace.parent / "page")
    both = ("--html", page, "--chrome-trace", page)
    call("plan", str(trace), *MODEL, *both).check_refused("--html and --chrome-trace are one file")
    own = ("--html", str(trace))
    call("plan", str(trace), *MODEL, *own).check_refused("TRACE and --html are one file")
    assert trace.read_text() == before


def test_a_prefix_is_shorter_than_what_a_model_reads(call) -> None:
    fit = ("fit", "llama-3.1-8b", "--memory", "24GiB", "--max-model-len", "100")
    call(*fit, "--shared-prefix", "100").check_refused("shared_prefix is 100", "at most 99 tokens")
    assert call(*fit, "--shared-prefix", "99").status == 0


def test_sizes_and_limits_have_bounds() -> None:
    assert parse_bytes("1000000GiB") == 10**6 * 2**30
    for text in (DIGITS, f"{DIGITS}GiB", "1073741825GiB"):
        with pytest.raises(ConfigError, match="too large"):
            parse_bytes(text)
    assert parse_slo("ttft=1s,ttft_p=0.5").limits[0].share == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 2020-13-45", "not valid YAML: month must be"),
        ('a: !!int "abc"', "not valid YAML: invalid literal"),
        ("[" * 1500, "nested too deeply"),
        ("a: [", "line 1, column 5"),
        ("memory: 0\nbandwidth: 1\npeak: {bf16: 1}", "memory is 0, but it must be above 0"),
        ("memory: 1GiB\nvisible: 2GiB\nbandwidth: 1\npeak: {bf16: 1}", "visible is 2.0 GiB"),
        (f"memory: {DIGITS}\nbandwidth: 1\npeak: {{bf16: 1}}", "too large"),
        ("bandwidth: 1e3\npeak: {bf16: 1}", "bandwidth is '1e3', but it must be a number"),
    ],
)
def test_hardware_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_hardware(str(path))
    assert "\n" not in str(caught.value)


def test_a_number_that_yaml_takes_for_text_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("requests: 1\narrivals: {rate: 1e3}\nprompt: 1\noutput: 1\n")
    with pytest.raises(ConfigError, match="rate is '1e3', but it must be a number"):
        read_workload_file(path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layer_types": [{}] * 4}, "layers of the kind {}"),
        ({"max_position_embeddings": 0}, "max_model_len is 0, but it must be at least 2"),
        ({"max_position_embeddings": 1}, "max_model_len is 1"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_key_value_heads": 5}, "32 heads cannot share 5 KV heads"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
    ],
)
def test_models_that_cannot_be(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | settings))
    with pytest.raises(ConfigError, match=words):
        shape_from_file(path)


def test_rows_that_no_table_has(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = (f"{'1' * 200_000},1,2", f"1,{10**10},2", "1,10.0,2.00", "2,10.5,2", "3, 20, 4")
    path.write_text("\n".join(("TIMESTAMP, ContextTokens, GeneratedTokens", *rows)))
    trace = read_trace(path)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [
        (10, 2),
        (20, 4),
    ]
    reasons = {row.line: row.reason for row in trace.bad_rows}
    assert "is no row of CSV: field larger" in reasons[2]
    assert reasons[3].startswith("ContextTokens is 10000000000, but it must be a whole number")
    assert reasons[5].startswith("ContextTokens is '10.5', but")


def test_numbers_without_end_are_no_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        f'{{"input_length": {"9" * 5000}, "output_length": 1}}\n'
        '{"input_length": 10.0, "output_length": 1}\n'
    )
    trace = read_trace(path)
    assert [row.reason for row in trace.bad_rows] == ["is not JSON"]
    assert trace.requests[0].num_prompt_tokens == 10


def test_hit_rates_tell_the_rows_that_are_not_used(call, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 100, "output_length": 2, "hash_ids": [1]}'
    path.write_text(f"{good}\n[]\n")
    command = ("reproduce", "mooncake", "--trace", str(path), "--capacity", "1")
    assert "1 rows of the trace are not used:\n  line 2: is not an object" in call(*command).out
    report = call(*command, "--live", "0", "--json").json
    assert report["first_bad_rows"] == [{"line": 2, "reason": "is not an object"}]
    call(*command, "--live", "9" * 30).check_refused("at most 16777216")
    call(*command, "-tp", "3").check_refused("32 heads do not divide among 3 devices")


def test_the_names_of_columns_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP;ContextTokens;GeneratedTokens\n0;1;2\n")
    with pytest.raises(TraceError, match="input_length is missing, nor one of ContextTokens"):
        read_trace(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_default_is_told_twice(call, name: str) -> None:
    module = import_module(f"looseleaf.commands.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    text = " ".join(call(name, "--help").out.split())
    for action in parser._actions:
        if action.help and "(default: " in action.help:
            told = action.help[action.help.index("(default: ") :].split()
            assert " ".join((*told, "(default:")) not in text, action.dest
