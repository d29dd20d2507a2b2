"""`looseleaf fit`"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from looseleaf.planner.hardware import known_hardware
from looseleaf.planner.known_models import known_shapes

MODEL = "meta-llama/Llama-3.1-8B"


def test_how_many_fit(call) -> None:
    outcome = call("fit", MODEL, "--memory", "24GiB", "--requests", "1000:200", "--json")
    answer = outcome.json
    assert answer["model"]["name"] == MODEL
    assert answer["kv_cache"]["bytes_per_token"] == 131_072
    assert answer["memory"]["usable"] == int(0.9 * 24 * 2**30)
    assert 35 < answer["requests"][0]["requests"] < 40
    assert any("2 x 32 layers x 8 KV heads x 128 x 2 B" in line for line in answer["arithmetic"])


def test_the_arithmetic_is_shown(call) -> None:
    outcome = call("fit", MODEL, "--memory", "24GiB", "--requests", "1000:200")
    assert (outcome.status, outcome.err) == (0, "")
    for told in ("24.0 GiB x 0.9", "15.0 GiB", "131,072 B", "1000 + 200 tokens", "warning: one"):
        assert told in outcome.out


def test_all_options_together(call) -> None:
    answer = call(
        *("fit", "qwen3-30b-a3b", "--hardware", "H100", "--gpu-memory-utilization", "0.8"),
        *("--weights-dtype", "fp8", "--kv-cache-dtype", "fp8", "--block-size", "32"),
        *("--max-model-len", "8192", "-tp", "2", "--max-num-seqs", "64"),
        *("--max-num-batched-tokens", "8192", "--overhead", "3GiB", "--shared-prefix", "320"),
        *("--requests", "1000:200x0.9", "4000:500x0.1", "--json"),
    ).json
    assert answer["memory"]["total"] == 81_082 * 2**20
    assert answer["memory"]["overhead"] == 3 * 2**30
    assert answer["kv_cache"]["bytes_per_token"] == 48 * 2 * 2 * 128
    assert (answer["kv_cache"]["block_size"], answer["max_model_len"]) == (32, 8192)
    assert [one["share"] for one in answer["requests"]] == [0.9, 0.1]
    assert answer["mix"]["p50"]["tokens"] == 1200


def test_a_device_of_the_users_own(call, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text("memory: 64GiB\nbandwidth: 200\npeak: {f32: 2}\nkind: cpu\n")
    answer = call("fit", MODEL, "--hardware", str(path), "--json").json
    assert answer["memory"]["total"] == 64 * 2**30
    more = call("fit", MODEL, "--hardware", str(path), "--memory", "96GiB", "--json").json
    assert more["memory"]["total"] == 96 * 2**30


def test_a_file_and_a_folder(call, tiny_model: Path, tmp_path: Path) -> None:
    named = call("fit", str(tiny_model), "--memory", "1GiB", "--json").json
    assert named["kv_cache"]["dtype"] == "int16"
    settings = next(row.config for row in known_shapes() if row.name == MODEL)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    folder = call("fit", str(tmp_path), "--memory", "24GiB", "--json").json
    table = call("fit", MODEL, "--memory", "24GiB", "--json").json
    assert folder["kv_cache"] == table["kv_cache"]


def test_what_there_is(call) -> None:
    outcome = call("fit", "--list")
    for row in known_shapes():
        assert f"  {row.name}\n" in outcome.out
    assert "rtx-4090        NVIDIA GeForce RTX 4090" in outcome.out
    assert call("fit", "--list", "--json").json["hardware"] == list(known_hardware())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["which model?", "--list"]),
        ((MODEL,), ["how much memory?", "--memory"]),
        ((MODEL, "--hardware", "epyc-9654"), ["how much memory?"]),
        ((MODEL, "--hardware", "abacus"), ["'abacus'", "rtx-4090"]),
        ((MODEL, "--memory", "lots"), ["--memory", "'lots'", "2GiB"]),
        ((MODEL, "--memory", "8GiB"), ["15.0 GiB", "7.2 GiB", "use tensor_parallel_size 4"]),
        ((MODEL, "--memory", "24GiB", "--requests", "1000"), ["'1000'", "1000:200"]),
        ((MODEL, "--memory", "24GiB", "--max-model-len", "99999"), ["12.2 GiB", "44704 or less"]),
        ((MODEL, "--memory", "24GiB", "--block-size", "0"), ["--block-size", "at least 1"]),
        (("llama-3.1-9b", "--memory", "24GiB"), ["did you mean meta-llama/Llama-3.1-8B"]),
        (("no/such.gguf", "--memory", "24GiB"), ["there is no file"]),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_mistakes_get_a_message(call, arguments, words) -> None:
    call("fit", *arguments).check_refused(*words)


def test_a_process_answers_within_a_second_of_processor_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-X", "importtime", "-m", "looseleaf", "fit", MODEL]
    done = subprocess.run(
        [*command, "--memory", "24GiB", "--json"], capture_output=True, text=True, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kv_cache"]["num_blocks"] > 2000
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tomllib" in imported
    assert not imported & {"numpy", "yaml", "rich", "starlette", "jinja2", "tokenizers"}
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
