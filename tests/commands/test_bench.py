"""`looseleaf bench`: the list, a result per workload, the kernels and the start."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_gguf

from looseleaf.bench.workloads import WORKLOADS
from looseleaf.cli import main
from looseleaf.engine.cores import physical_cores

NAMES = [*WORKLOADS, "all", "gemm", "attention", "startup"]
SMALL = {
    name: dataclasses.replace(
        workload,
        num_requests=min(3, workload.num_requests),
        shared_tokens=workload.shared_tokens // 64,
        own_tokens=max(4, workload.own_tokens // 64),
        max_tokens=4,
    )
    for name, workload in WORKLOADS.items()
}
KEYS = (
    *("workload", "wall_s", "ttft_ms", "tpot_ms", "prefill_tokens_per_s", "decode_tokens_per_s"),
    *("output_tokens_per_s", "peak_rss_mib", "executor", "kv_cache_dtype", "threads", "model"),
    "machine",
)
EXECUTION = {
    "reference": {"executor": "reference", "kv_cache_dtype": "f32", "threads": 1},
    "native": {"executor": "native", "kv_cache_dtype": "int16", "threads": physical_cores()},
}
BY_DEFAULT = EXECUTION[tiny_gguf.EXECUTOR]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every workload at a fraction of its size."""
    monkeypatch.setattr("looseleaf.commands.bench.WORKLOADS", SMALL)


@pytest.fixture
def bench(call, tiny_model: Path) -> Any:
    def run(name: str, *options: str) -> Any:
        return call("bench", name, "--model", str(tiny_model), *options)

    return run


def test_without_a_name_the_benchmarks_are_listed(call) -> None:
    outcome = call("bench")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0] for line in outcome.out.splitlines()] == NAMES
    for workload in WORKLOADS.values():
        assert workload.description in outcome.out


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_explains_its_flags(call, name: str) -> None:
    outcome = call("bench", name, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert f"usage: looseleaf bench {name} " in outcome.out
    wanted = ["--model", "--json", "--rounds", "--threads"]
    if name in WORKLOADS or name == "all":
        wanted += ["--warmup", "--executor", "--block-size", "--max-num-batched-tokens"]
        wanted += ["--kv-cache-dtype", "--profile"]
    for flag in wanted:
        assert flag in outcome.out
    assert "(default: None)" not in outcome.out


def test_json_of_a_workload(bench, tiny_model: Path) -> None:
    result = bench("single", "--json", "--rounds", "2", "--warmup", "0").json
    assert result.keys() >= set(KEYS)
    assert next(iter(result)) == "workload"
    assert result["workload"] == "single"
    assert result.items() >= BY_DEFAULT.items()
    assert result["model"] == str(tiny_model)
    assert result["machine"].keys() == {"cpu", "cores", "memory_gib"}
    assert result["rounds"] == len(result["wall_s_of_rounds"]) == 2
    assert (result["num_requests"], result["output_tokens"]) == (1, 128)
    assert (result["prompt_tokens_computed"], result["prompt_tokens_cached"]) == (128, 0)
    assert result["blocks_peak"] == 16
    assert result["peak_rss_mib"] > 10
    # One step for the prompt and one for each token after the first.
    assert result["steps"] == 128
    for name in KEYS[1:7]:
        assert result[name] > 0


def test_who_computed_is_told_as_it_was(bench, small) -> None:
    once = ("--rounds", "1", "--warmup", "0")
    reference = (*once, "--executor", "reference")
    assert bench("single", *reference, "--json").json.items() >= EXECUTION["reference"].items()
    assert "reference executor, threads: 1;" in bench("single", *reference).out
    if tiny_gguf.EXECUTOR == "native":
        given = ("--threads", "2", "--kv-cache-dtype", "f32")
        result = bench("single", *once, "--json", *given).json
        assert result.items() >= (BY_DEFAULT | {"threads": 2, "kv_cache_dtype": "f32"}).items()


def test_engine_options_arrive(bench, small) -> None:
    chunks = ("--max-num-batched-tokens", "2", "--block-size", "1")
    result = bench("single", "--json", *chunks, "--rounds", "1").json
    assert result["blocks_peak"] == 4 + 3
    assert result["steps"] == 2 + 3


@pytest.mark.parametrize("name", WORKLOADS)
def test_people_get_a_table(bench, small, name: str) -> None:
    outcome = bench(name, "--rounds", "1", "--warmup", "0")
    assert (outcome.status, outcome.err) == (0, "")
    executor = f"{tiny_gguf.EXECUTOR} executor"
    for told in (name.split("-")[0], executor, "first token, ms", "MiB", "rounds: 1"):
        assert told in outcome.out


def test_all_of_them(bench, small) -> None:
    results = bench("all", "--rounds", "1", "--warmup", "0", "--json").json
    assert list(results) == list(WORKLOADS)
    for name, result in results.items():
        assert result["workload"] == name
        assert result["output_tokens"] == SMALL[name].output_tokens
    assert results["shared-prefix"]["prompt_tokens_cached"] == 2 * 16
    table = bench("all", "--rounds", "1", "--warmup", "0").out
    for told in ("single", "batch", "shared-", "prefix", "parallel-", "long-"):
        assert told in table


@pytest.mark.parametrize("name", ["long-context", "all"])
def test_a_workload_that_does_not_fit_is_refused_first(
    bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("looseleaf.bench.rounds.run_round", None)
    outcome = bench(name)
    if name == "long-context":
        outcome.check_refused("4160 tokens", "max_model_len is 512", "--max-model-len")
    else:
        outcome.check_refused("shared-prefix", "1072 tokens", "max_model_len is 512")
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sing",), ["'sing'", "single", "gemm"]),
        (("single", "--rounds", "0"), ["--rounds", "it is 0", "at least 1"]),
        (("single", "--rounds", "two"), ["--rounds", "'two'"]),
        (("single", "--warmup", "-1"), ["--warmup"]),
        (("single", "--executor", "abacus"), ["'abacus'", "native"]),
        (("single", "--kv-cache-dtype", "f8"), ["'f8'", "f16"]),
        (("attention", "--kv-type", "auto"), ["'auto'", "f16"]),
        (("single", "--model", "smollm2-136m"), ["'smollm2-136m'"]),
        (("startup", "--model", "smollm2-136m"), ["'smollm2-136m'"]),
        (("startup", "--block-size", "3"), ["--block-size"]),
        (("gemm", "--type", "q3"), ["'q3'", "q4"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes_are_said(call, arguments: tuple[str, ...], words: list[str]) -> None:
    call("bench", *arguments).check_refused(*words)


def test_kernels_need_the_compiled_part(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.bench.kernels.compiled", lambda: None)
    for name in ("gemm", "attention"):
        bench(name).check_refused("C++20 compiler", "reinstall")


@pytest.fixture
def fake_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take no time: a nanosecond for a multiply-add, a millisecond for attention."""
    fake = SimpleNamespace(
        read_bandwidth=lambda num_bytes, threads: 20e9,
        packed_bytes=lambda kind, n, k: n * k // 2,
        bench_matmul=lambda kind, n, k, rows, threads, repeats: n * k * rows * 1e-9,
        bench_attention=lambda *call: 1e-3 if call[7] else 2e-3,
        peak_int8_madds=lambda threads: 4e9,
        peak_f32_flops=lambda threads: 4e9,
    )
    monkeypatch.setattr("looseleaf.bench.kernels.compiled", lambda: fake)


def test_products_of_the_model(bench, fake_native: None) -> None:
    result = bench("gemm", "--json", "--threads", "3").json
    assert (result["workload"], result["threads"], result["rounds"]) == ("gemm", 3, 5)
    assert len(result["products"]) == 5 * 6
    for one in result["products"]:
        assert one["gmadds_per_s"] == pytest.approx(1)
        assert one["share_of_peak"] == pytest.approx(0.5)
    assert [one["rows"] for one in result["passes"]] == [1, 4, 8, 32, 128, 512]
    speeds = {round(one["prefill_tokens_per_s"]) for one in result["passes"]}
    assert len(speeds) == 1
    table = bench("gemm").out
    for told in ("64 x 32", "f32", "50%", "Gmadd/s", "20.0 GB/s", "prefill, tok/s"):
        assert told in table


def test_products_of_given_shapes(call, fake_native: None) -> None:
    result = call("bench", "gemm", "--shapes", "64x32,8x96", "--type", "q8", "--json").json
    assert [(p["n"], p["k"], p["type"]) for p in result["products"][::6]] == [
        *((64, 32, "q8"), (8, 96, "q8"))
    ]
    assert result["passes"] == []
    assert call("bench", "gemm", "--shapes", "64x32").status == 0
    call("bench", "gemm", "--shapes", "64").check_refused("'64'", "1536x576")


def test_attention(bench, fake_native: None) -> None:
    result = bench("attention", "--json", "--rounds", "2").json
    sizes = [2**i for i in range(9)]
    assert [(r["context"], r["block_size"]) for r in result["layouts"]] == [
        *((1024, size) for size in sizes),
        *((4096, size) for size in sizes),
    ]
    assert {r["ratio"] for r in result["layouts"]} == {2.0}
    assert [r["block_size"] for r in result["sharing"]] == sizes
    assert (result["kv_type"], result["rounds"]) == ("f32", 2)
    table = bench("attention").out
    for told in ("2.000", "shuffled, ms", "4096 of 4128", "f32 KV"):
        assert told in table


def test_startup(bench, tiny_model: Path) -> None:
    result = bench("startup", "--rounds", "1", "--json").json
    assert (result["workload"], result["rounds"]) == ("startup", 1)
    assert result.items() >= BY_DEFAULT.items()
    assert 0 < result["first_token_s"] < result["end_s"] < 60
    assert result["first_run_s"] > 0


def test_startup_for_people(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"first_token_s": 0.5, "end_s": 0.75, "first_run_s": 1.5, "rounds": 5}
    commands = []

    def fake(command: list[str], rounds: int, advance: Any) -> dict[str, Any]:
        commands.append(command)
        return figures

    monkeypatch.setattr("looseleaf.bench.startup.measure_startup", fake)
    given = {"--threads": "1", "--executor": "native", "--kv-cache-dtype": "f32"}
    given["--activations"] = "f32"
    table = bench("startup", *(word for option in given.items() for word in option)).out
    for told in ("0.500", "0.750", "1.500", "first: 5", "native executor, threads: 1;"):
        assert told in table
    (command,) = commands
    assert {name: command[command.index(name) + 1] for name in given} == given


def test_a_start_that_cannot_be_is_not_measured(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.bench.startup.measure_startup", None)
    outcome = bench("startup", "--executor", "reference", "--kv-cache-dtype", "f16")
    outcome.check_refused("kv_cache_dtype is 'f16'", "reference executor")


def test_a_real_process(spawn, tiny_model: Path) -> None:
    outcome = spawn("bench", "single", "--model", str(tiny_model), "--rounds", "1", "--json")
    assert outcome.err == ""
    assert outcome.json["workload"] == "single"


def test_long_contexts_are_measured_where_they_fit(
    call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole of a sequence, prompt and output, is what has to fit."""
    monkeypatch.setattr(tiny_gguf, "CONTEXT", 144)
    path = tiny_gguf.write_tiny_model(tmp_path / "exact.gguf")
    workload = dataclasses.replace(WORKLOADS["long-context"], own_tokens=136, max_tokens=8)
    monkeypatch.setattr("looseleaf.commands.bench.WORKLOADS", {"long-context": workload})
    options = ("--model", str(path), "--rounds", "1", "--warmup", "0", "--json")
    assert call("bench", "long-context", *options).json["output_tokens"] == 8
    call("bench", "long-context", *options, "--max-model-len", "143").check_refused("144 tokens")


def test_other_commands_load_nothing_of_it() -> None:
    code = (
        "import sys\n"
        "from looseleaf.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "import looseleaf.commands.generate, looseleaf.commands.serve\n"
        "loaded = [name for name in sys.modules if name.startswith('looseleaf.bench')]\n"
        "assert not loaded, loaded\n"
        "import looseleaf.commands.bench\n"
        "assert 'numpy' not in sys.modules or 'looseleaf.bench.rounds' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "bench" in capsys.readouterr().out
