"""Cases of kind 10 that are about sizes (../shared/cases/open.md)."""

import csv
import json
from pathlib import Path

import pytest

from looseleaf.planner.fit import FitSettings, fit
from looseleaf.planner.hf_config import shape_from_config
from looseleaf.planner.known_models import known_shapes
from looseleaf.planner.lengths import Lengths
from looseleaf.planner.models import load_shape

RECORDING = Path(__file__).resolve().parents[3] / "shared/traces/llmservingsim/RTX4090_Llama-3.1-8B"


def test_c175_a_mix_has_a_median_and_a_tail_besides_its_worst_case() -> None:
    mix = (Lengths(200, 100, 0.6), Lengths(2000, 300, 0.35), Lengths(16_000, 500, 0.05))
    asked = FitSettings(memory=80 * 2**30, max_model_len=32_768, requests=mix)
    answer = fit(load_shape("meta-llama/Llama-3.1-8B"), asked)
    assert answer.mix is not None
    assert answer.mix.p50 == mix[0]
    assert answer.mix.p95 == mix[1]
    worst, tail = answer.at_max_model_len.full, answer.mix.at_p95.full
    assert worst < answer.mix.together.full < tail < answer.mix.at_p50.full


def test_c175_the_answer_is_that_of_a_live_server_within_3_percent() -> None:
    """vLLM 0.19 on an RTX 4090, 300 requests of ShareGPT: 34.4 ran at once while it was full."""
    if not RECORDING.is_dir():
        pytest.skip(f"no recording in {RECORDING}")
    meta = json.loads((RECORDING / "meta.json").read_text())
    rows = [json.loads(line) for line in (RECORDING / "requests.jsonl").read_text().splitlines()]
    asked = FitSettings(
        memory=meta["hardware"]["device_total_memory_bytes"],
        max_model_len=meta["engine_kwargs"]["max_model_len"],
        requests=tuple(Lengths(row["input_toks"], row["output_toks"]) for row in rows),
    )
    answer = fit(load_shape("meta-llama/Llama-3.1-8B"), asked)
    with (RECORDING / "timeseries.csv").open() as file:
        series = list(csv.DictReader(file))
    full = [int(row["running"]) for row in series if float(row["kv_cache_pct"]) > 90]
    assert answer.num_blocks == pytest.approx(meta["kv_cache"]["num_gpu_blocks"], rel=0.01)
    assert answer.mix is not None
    assert answer.mix.together.average == pytest.approx(sum(full) / len(full), rel=0.03)


def test_c177_latent_attention_is_found_in_settings_and_lengths_are_whole_blocks() -> None:
    row = next(row for row in known_shapes() if row.name == "deepseek-ai/DeepSeek-V3")
    shape = shape_from_config({**row.config, "model_type": "unheard_of"}, "someone's", "test")
    assert shape.is_latent
    assert shape.kv_bytes_per_token("bf16") == 61 * (512 + 64) * 2
    asked = FitSettings(memory=1024 * 2**30, requests=(Lengths(1000, 18),))
    answer = fit(shape, asked)
    assert answer.requests[0].num_blocks == 64  # of 1,017 tokens: not of one, nor 63.6
    assert answer.requests[0].full == pytest.approx(answer.budget.kv / (64 * 16 * 70_272))
