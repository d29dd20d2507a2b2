"""How many requests fit: the arithmetic, against published figures, recordings and the engine."""

import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import plan_memory
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.fit import Fit, FitSettings, fit, weight_bytes
from looseleaf.planner.fit_report import arithmetic, as_json, as_text
from looseleaf.planner.fit_warnings import warnings
from looseleaf.planner.kv_sizing import KVSizing
from looseleaf.planner.lengths import Lengths, mean_tokens, parse_lengths, quantile
from looseleaf.planner.models import load_shape

GIB = 2**30
RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "traces" / "llmservingsim"
SHAREGPT = Lengths(161, 338)
LLAMA = load_shape("meta-llama/Llama-3.1-8B")


def sized(name: str, kv: float, **settings: object) -> Fit:
    """With so many bytes for KV, whatever the weights take."""
    memory = 4096 * GIB
    return fit(
        load_shape(name),
        FitSettings(memory=memory, kv_cache_memory=int(kv), **settings),  # type: ignore[arg-type]
    )


def codes(answer: Fit) -> set[str]:
    return {warning.code for warning in warnings(answer)}


# --- the PagedAttention paper (Kwon et al., SOSP 2023), table 1 and figure 13 ---


def test_opt_13b_on_an_a100_as_the_paper_has_it() -> None:
    answer = sized("opt-13b", 12 * GIB)
    assert answer.sizing.bytes_per_token == 819_200
    assert answer.num_tokens == 15_728  # 15.7K slots
    assert answer.at_max_model_len.contiguous == 7  # Orca (Max) batches exactly 7
    assert answer.budget.weights == pytest.approx(26e9, rel=0.02)


def test_opt_66b_on_4_devices_as_the_paper_has_it() -> None:
    answer = sized("opt-66b", 21 * GIB / 4, tensor_parallel_size=4)
    assert answer.num_tokens == pytest.approx(9_700, rel=0.02)
    assert answer.budget.weights == pytest.approx(132e9 / 4, rel=0.01)


def test_opt_175b_on_8_devices_as_the_paper_has_it() -> None:
    answer = sized("opt-175b", 264 * GIB / 8, tensor_parallel_size=8)
    assert round(answer.num_tokens, -2) == 60_100
    assert answer.budget.weights == pytest.approx(346e9 / 8, rel=0.011)


# --- recordings of vLLM 0.19 (../shared/traces) ---


@pytest.fixture
def recording() -> Path:
    folder = RECORDINGS / "RTX4090_Llama-3.1-8B"
    if not folder.is_dir():
        pytest.skip(f"no recordings in {RECORDINGS}")
    return folder


def as_recorded(folder: Path, requests: tuple[Lengths, ...]) -> tuple[Fit, int]:
    """What is predicted of that machine, and the number of blocks that it really had."""
    meta = json.loads((folder / "meta.json").read_text())
    settings = FitSettings(
        memory=meta["hardware"]["device_total_memory_bytes"],
        gpu_memory_utilization=meta["kv_cache"]["gpu_memory_utilization"],
        max_model_len=meta["engine_kwargs"]["max_model_len"],
        max_num_seqs=meta["engine_kwargs"]["max_num_seqs"],
        max_num_batched_tokens=meta["engine_kwargs"]["max_num_batched_tokens"],
        requests=requests,
    )
    return fit(LLAMA, settings), meta["kv_cache"]["num_gpu_blocks"]


def test_the_number_of_blocks_of_a_real_server(recording: Path) -> None:
    answer, measured = as_recorded(recording, ())
    assert answer.num_blocks == pytest.approx(measured, rel=0.01)


def test_how_many_requests_ran_at_once_on_a_full_server(recording: Path) -> None:
    lines = (recording / "requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    requests = tuple(Lengths(row["input_toks"], row["output_toks"]) for row in rows)
    answer, _ = as_recorded(recording, requests)
    with (recording / "timeseries.csv").open() as file:
        full = [
            int(row["running"]) for row in csv.DictReader(file) if float(row["kv_cache_pct"]) > 90
        ]
    assert len(full) > 100
    assert answer.mix is not None
    assert answer.mix.together.average == pytest.approx(sum(full) / len(full), rel=0.03)


# --- the engine's own plan ---


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("max_model_len", [None, 200])
def test_it_is_the_plan_of_the_engine(
    tiny_model: Path, block_size: int, max_model_len: int | None
) -> None:
    shape = load_shape(str(tiny_model))
    kv = 3 * 2**20
    answer = fit(
        shape,
        FitSettings(
            memory=GIB, kv_cache_memory=kv, block_size=block_size, max_model_len=max_model_len
        ),
    )
    settings = EngineSettings(
        block_size=block_size, kv_cache_memory=kv, max_model_len=max_model_len
    )
    plan = plan_memory(settings, round(answer.sizing.bytes_per_token), shape.max_model_len)
    assert (answer.num_blocks, answer.max_model_len) == (plan.num_blocks, plan.max_model_len)
    assert answer.sizing.block_bytes == plan.block_bytes
    assert answer.at_max_model_len.full == pytest.approx(plan.requests_of(plan.max_model_len), 0.01)


def test_a_gguf_is_sized_as_it_is_served(tiny_model: Path) -> None:
    shape = load_shape(str(tiny_model))
    wide = fit(shape, FitSettings(memory=GIB, kind="cpu"))
    odd = fit(shape, FitSettings(memory=GIB, kind="cpu", block_size=12))
    assert (wide.kv_dtype, odd.kv_dtype) == ("int16", "f16")
    assert wide.budget.weights == shape.stored_bytes


# --- bytes of requests ---


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from([1, 3, 16]),
    st.sampled_from(["llama-3.1-8b", "gemma-3-1b", "mistral-7b-v0.1", "deepseek-v2-lite"]),
)
def test_the_mean_over_a_life_is_the_mean_of_its_steps(
    prompt: int, output: int, block_size: int, name: str
) -> None:
    sizing = KVSizing(load_shape(name), "bf16", block_size)
    steps = [sizing.request_bytes(prompt + i) for i in range(output)]
    assert sizing.mean_request_bytes(prompt, output) == pytest.approx(sum(steps) / output)


@given(st.integers(1, 5000), st.sampled_from([1, 16, 64]))
def test_layers_with_a_window_hold_what_a_query_may_see(stored: int, block_size: int) -> None:
    """Of a model with a window of 512 in 22 of 26 layers, wherever blocks begin."""
    shape = load_shape("gemma-3-1b")
    sizing = KVSizing(shape, "bf16", block_size)
    per_layer = 2 * 1 * 256 * 2 * block_size
    seen = range(max(0, stored - 512), stored)
    touched = len({position // block_size for position in seen})
    held = sizing.request_bytes(stored)
    exact = per_layer * (4 * blocks_for(stored, block_size) + 22 * touched)
    assert exact <= held <= exact + 22 * per_layer
    kept = KVSizing(shape, "bf16", block_size, free_windows=False)
    assert kept.request_bytes(stored) == 26 * per_layer * blocks_for(stored, block_size)


@given(st.integers(0, 10**10), st.sampled_from(["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"]))
def test_the_longest_request_fits_and_a_block_more_does_not(num_bytes: int, name: str) -> None:
    sizing = KVSizing(load_shape(name), "bf16", 16)
    longest = sizing.longest(num_bytes)
    assert longest % 16 == 0
    assert not longest or sizing.request_bytes(longest) <= num_bytes
    assert sizing.request_bytes(longest + 16) > num_bytes


def test_a_model_whose_layers_all_have_a_window_has_no_longest_request() -> None:
    answer = sized("mistral-7b-v0.1", 2 * GIB)
    assert answer.max_model_len == 32_768
    assert answer.at_max_model_len.full == pytest.approx(2 * GIB / (257 * 16 * 131_072))


@pytest.mark.parametrize(
    ("dtype", "per_token"),
    [
        ("bf16", 131_072),
        ("f32", 262_144),
        ("fp8", 65_536),
        ("int16", 131_072 + 2 * 32 * 8 * 4),
        ("int8", 65_536 + 2 * 32 * 8 * 4),
        ("q8_0", 65_536 * 34 // 32),
        ("q4_0", 65_536 * 18 // 32),
    ],
)
def test_kv_dtypes_with_their_scales(dtype: str, per_token: int) -> None:
    assert LLAMA.kv_bytes_per_token(dtype) == per_token


@pytest.mark.parametrize(("parallel", "per_token"), [(1, 131_072), (2, 65_536), (8, 16_384)])
def test_tensor_parallelism_divides_kv_heads(parallel: int, per_token: int) -> None:
    assert LLAMA.kv_bytes_per_token("bf16", parallel) == per_token


def test_beyond_its_kv_heads_tensor_parallelism_stores_them_again() -> None:
    answer = sized("llama-3.1-8b", GIB, tensor_parallel_size=16)
    assert answer.sizing.bytes_per_token == 16_384
    assert "replicated_kv" in codes(answer)
    assert "replicated_kv" not in codes(sized("llama-3.1-8b", GIB, tensor_parallel_size=8))


def test_a_latent_is_on_every_device() -> None:
    one, eight = (load_shape("deepseek-v3").kv_bytes_per_token("bf16", n) for n in (1, 8))
    assert one == eight == 70_272
    assert "replicated_kv" in codes(sized("deepseek-v3", GIB, tensor_parallel_size=8))


# --- weights ---


@pytest.mark.parametrize(
    ("name", "dtype", "num_bytes"),
    [
        ("llama-3.1-8b", "bf16", 16_060_522_496),
        ("llama-3.1-8b", "f32", 32_121_044_992),
        # Embedding, output and norms at 16 bits: 9.08 GB is what fp8 checkpoints of it take.
        ("llama-3.1-8b", "fp8", 9_081_724_928),
        ("deepseek-v3", "fp8", 673_150_386_176),
    ],
)
def test_what_weights_take(name: str, dtype: str, num_bytes: int) -> None:
    assert weight_bytes(load_shape(name), dtype, 1) == pytest.approx(num_bytes, rel=0.001)


def test_a_gguf_quantized_to_one_type(tmp_path: Path) -> None:
    bits = 8 * weight_bytes(LLAMA, "q8_0", 1) / LLAMA.parameters.total
    assert bits == pytest.approx(8.5, abs=0.01)


def test_weights_of_devices_add_up_to_more_than_the_whole_by_what_is_on_each() -> None:
    whole = weight_bytes(LLAMA, "bf16", 1)
    for parallel in (2, 4, 8):
        each = weight_bytes(LLAMA, "bf16", parallel)
        assert whole <= each * parallel < whole * 1.001
    replicated = weight_bytes(LLAMA, "bf16", 16) * 16 - whole
    assert replicated > LLAMA.parameters.kv  # projections to KV heads are there twice


# --- mixes ---


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("1000:200", Lengths(1000, 200)),
        ("1000:200x0.3", Lengths(1000, 200, 0.3)),
        ("1:1x.5", Lengths(1, 1, 0.5)),
    ],
)
def test_lengths_that_are_understood(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["", "1000", "1000:", "a:b", "1000:200x", "-1:5", "0:5", "5:0", "5:5x0"]
)
def test_lengths_that_are_not(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_lengths(text)


def test_quantiles_are_by_requests() -> None:
    mix = [Lengths(100, 10, 0.5), Lengths(1000, 10, 0.44), Lengths(9000, 10, 0.06)]
    assert quantile(mix, 0.5) == mix[0]
    assert quantile(mix, 0.51) == mix[1]
    assert quantile(mix, 0.95) == mix[2]
    assert mean_tokens(mix) == pytest.approx(0.5 * 110 + 0.44 * 1010 + 0.06 * 9010)


def test_who_generates_more_is_there_longer() -> None:
    """Half of all requests are short, but at any time one in eleven that is there."""
    short, long = Lengths(16, 16), Lengths(16, 160)
    answer = sized("llama-3.1-8b", GIB, requests=(short, long))
    assert answer.mix is not None
    alone = [GIB / one.full for one in answer.requests]
    expected = (16 * alone[0] + 160 * alone[1]) / 176
    assert GIB / answer.mix.together.full == pytest.approx(expected)


def test_a_prefix_is_stored_once() -> None:
    """[M] figures.md: saved = block bytes x (sharers - 1) for each shared block."""
    lengths = Lengths(1000, 200)
    alone = sized("llama-3.1-8b", 4 * GIB, requests=(lengths,))
    shared = sized("llama-3.1-8b", 4 * GIB, requests=(lengths,), shared_prefix=500)
    block, num_shared = shared.sizing.block_bytes, 500 // 16
    whole = alone.sizing.request_bytes(lengths.num_stored)
    num = shared.requests[0].full
    saved = (num - 1) * num_shared * block
    assert num * whole - saved == pytest.approx(4 * GIB)
    assert alone.requests[0].full * whole == pytest.approx(4 * GIB)


def test_wastes() -> None:
    answer = sized("llama-3.1-8b", 4 * GIB, max_model_len=2048, requests=(SHAREGPT,))
    one = answer.requests[0]
    assert one.num_blocks == math.ceil(498 / 16)
    assert one.paged_waste == pytest.approx(1 - 498 / 512)
    assert one.contiguous_waste == pytest.approx(1 - 498 / 2048)
    assert one.full == pytest.approx(4 * GIB / (32 * 2**21))
    assert one.contiguous == 4 * GIB // (2048 * 131_072)
    assert one.average > one.full


# --- what cannot be ---


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(load_shape("llama-3.1-70b"), FitSettings(memory=24 * GIB))
    message = str(caught.value)
    for told in ("131.4 GiB in bf16", "21.6 GiB", "tensor_parallel_size 8", "devices of 163.9 GiB"):
        assert told in message


def test_smaller_weights_are_an_advice_where_they_help() -> None:
    with pytest.raises(ConfigError, match=r"weights_dtype fp8 \(8\.5 GiB\)"):
        fit(LLAMA, FitSettings(memory=16 * GIB))
    with pytest.raises(ConfigError, match=r"weights_dtype int4 \(5\.\d GiB\)"):
        fit(LLAMA, FitSettings(memory=10 * GIB))


def test_devices_of_the_size_that_is_advised_do_fit() -> None:
    with pytest.raises(ConfigError, match=r"devices of 19\.9 GiB or more"):
        fit(LLAMA, FitSettings(memory=16 * GIB))
    assert fit(LLAMA, FitSettings(memory=int(19.9 * GIB))).num_blocks > 100


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory": 0}, "memory is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization is 0"),
        ({"gpu_memory_utilization": 1.1}, "at most 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"tensor_parallel_size": 3}, "32 heads do not divide among 3 devices"),
        ({"weights_dtype": "int3"}, "weights dtype 'int3' is not known"),
        ({"kv_cache_dtype": "int4"}, "KV cache dtype 'int4' is not known"),
        ({"kv_cache_memory": 10 * GIB}, "set it lower"),
        ({"kv_cache_memory": 1000}, "one block of 16 tokens takes 2.0 MiB"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fit(LLAMA, FitSettings(**({"memory": 24 * GIB} | settings)))  # type: ignore[arg-type]


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="2 KV heads do not divide"):
        fit(load_shape("qwen2.5-0.5b"), FitSettings(memory=24 * GIB, tensor_parallel_size=7))


# --- warnings ---


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (
            {"requests": (Lengths(9000, 1),)},
            "never_fits",
            "9001 tokens are more than max_model_len",
        ),
        ({}, "max_model_len", "--max-model-len 8192"),
        ({"shared_prefix": 10}, "prefix", "10 tokens is shorter than a block of 16"),
        ({"shared_prefix": 40}, "prefix", "last 8 tokens"),
        (
            {"shared_prefix": 32, "requests": (Lengths(32, 9),)},
            "prefix",
            "not shorter than the prompt",
        ),
        ({"block_size": 256, "requests": (SHAREGPT,)}, None, ""),
        ({"block_size": 512, "requests": (Lengths(300, 20),)}, "block_size", "38%"),
        ({"max_num_seqs": 99, "requests": (SHAREGPT,)}, "max_num_seqs", "24 of these requests fit"),
        ({"max_num_seqs": 20, "requests": (SHAREGPT,)}, None, ""),
    ],
)
def test_what_is_warned_of(settings: dict[str, object], code: str | None, words: str) -> None:
    answer = sized("llama-3.1-8b", GIB, **settings)
    found = [w.message for w in warnings(answer) if w.code not in {"max_model_len"} - {code}]
    if code is None:
        assert not found
    else:
        assert code in codes(answer)
        assert any(words in message for message in found)


def test_a_share_that_leaves_nothing() -> None:
    answer = fit(LLAMA, FitSettings(memory=24 * GIB, gpu_memory_utilization=0.99))
    assert "utilization" in codes(answer)
    assert "utilization" not in codes(fit(LLAMA, FitSettings(memory=24 * GIB)))


def test_a_longer_context_than_the_models() -> None:
    answer = sized("llama-3-8b", 4 * GIB, max_model_len=16_000)
    assert "context" in codes(answer)


def test_windows_are_told_with_what_an_engine_fits_that_keeps_them() -> None:
    answer = sized("gemma-2-9b", 8 * GIB)
    told = next(w.message for w in warnings(answer) if w.code == "windows")
    assert "21 of 42 layers see a window of 4096" in told
    assert answer.unfreed < answer.at_max_model_len.full
    assert f"{answer.unfreed:.1f} requests" in told


# --- reports ---


def test_the_arithmetic_adds_up() -> None:
    answer = fit(LLAMA, FitSettings(memory=24 * GIB))
    budget = answer.budget
    assert budget.usable == int(0.9 * 24 * GIB)
    assert budget.weights + budget.overhead + budget.kv == budget.usable
    lines = {line.what: line for line in arithmetic(answer)}
    assert lines["one token"].formula == "2 x 32 layers x 8 KV heads x 128 x 2 B"
    assert lines["one token"].value == "131,072 B"
    assert lines["blocks"].value == f"{answer.num_blocks:,} = {answer.num_tokens:,} tokens"


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("deepseek-v3", "61 layers x 576 x 2 B"),
        ("gemma-2-9b", "2 x 42 layers x 8 KV heads x 256 x 2 B"),
    ],
)
def test_the_arithmetic_of_other_layers(name: str, formula: str) -> None:
    lines = {line.what: line for line in arithmetic(sized(name, 8 * GIB))}
    assert lines["one token"].formula == formula
    assert ("windows" in lines) == (name == "gemma-2-9b")


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gemma-3-12b", "mixtral-8x7b", "deepseek-v2-lite"]
)
def test_both_reports_tell_the_same(name: str) -> None:
    answer = sized(name, 8 * GIB, requests=(SHAREGPT, Lengths(2000, 100, 0.2)))
    told = json.loads(json.dumps(as_json(answer)))
    text = as_text(answer)
    assert told["kv_cache"]["num_blocks"] == answer.num_blocks
    assert f"{answer.num_blocks:,} = {answer.num_tokens:,} tokens" in text
    assert told["requests"][0]["requests"] == round(answer.requests[0].full, 2)
    assert f"{answer.requests[0].full:.1f}" in text
    assert told["mix"]["p95"]["tokens"] == 2100
    assert [w["message"] for w in told["warnings"]] == [w.message for w in warnings(answer)]
    assert all(w["message"] in text for w in told["warnings"])


def test_what_never_fits_is_said_in_the_table() -> None:
    lengths = (SHAREGPT, Lengths(9000, 10))
    text = as_text(sized("llama-3.1-8b", GIB, requests=lengths))
    rows = {line.split("tokens")[0].strip(): line for line in text.splitlines() if "tokens" in line}
    assert rows["9000 + 10"].split() == ["9000", "+", "10", "tokens", "never"]
    assert rows["161 + 338"].split()[4] == "16.0"
