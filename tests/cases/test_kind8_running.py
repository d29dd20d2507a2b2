"""Cases of kind 8 that are about running engines (../shared/cases/open.md)."""

import logging
from pathlib import Path

import pytest
from planning import linear_times
from tiny_gguf import write_tiny_model

from looseleaf import LLM, SamplingParams
from looseleaf.compiled import compiled
from looseleaf.engine.build import build
from looseleaf.engine.llm import RequestOutput
from looseleaf.engine.settings import EngineSettings, format_bytes
from looseleaf.planner.fit import FitSettings, fit
from looseleaf.planner.lengths import Lengths
from looseleaf.planner.models import load_shape
from looseleaf.planner.plan import memory_plan, run_plan
from looseleaf.planner.trace_types import Trace, TraceRequest

GIB = 2**30
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5)


def test_c143_blocks_are_taken_on_demand() -> None:
    """Memory for 4.0 requests of full length runs 64 of the mix, as the estimate says."""
    mix = Lengths(161, 338)
    asked = FitSettings(
        memory=80 * GIB, kv_cache_memory=4 * GIB, max_model_len=8192, requests=(mix,)
    )
    answer = fit(load_shape("meta-llama/Llama-3.1-8B"), asked)
    assert answer.at_max_model_len.full == 4
    crowd = (TraceRequest(0.0, mix.num_prompt_tokens, mix.num_output_tokens),) * 80
    settings = EngineSettings(
        max_num_seqs=256, max_num_batched_tokens=16_384, admission_headroom=338
    )
    plan = run_plan(Trace(crowd, (), True, 16), settings, memory_plan(answer), linear_times())
    assert answer.requests[0].full == 64
    assert plan.summary.running_peak == 64
    assert (plan.summary.requests, plan.summary.preemptions) == (80, 0)


def test_c144_blocks_win_over_bytes_and_shares() -> None:
    for share in (0.5, 0.9, 1.0):
        asked = FitSettings(memory=80 * GIB, gpu_memory_utilization=share)
        answer = fit(load_shape("meta-llama/Llama-3.1-8B"), asked)
        assert memory_plan(answer).num_blocks == answer.num_blocks
        plan = memory_plan(answer, 100)
        assert (plan.num_blocks, plan.max_model_len) == (100, 1600)


def test_c144_a_start_says_what_the_memory_is_for_and_takes_no_more(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = EngineSettings(model=str(tiny_model), kv_cache_memory="1MiB", swap_space="2MiB")
    with caplog.at_level(logging.INFO, "looseleaf"):
        stack = build(asked)
    try:
        memory = stack.memory
        cache = memory.num_blocks * memory.block_bytes
        assert 0 <= 2**20 - cache < memory.block_bytes
        weights = tiny_model.stat().st_size
        assert (
            f"memory: {format_bytes(weights)} weights + {format_bytes(cache)} KV cache + 2.0 MiB "
            f"swap space = {format_bytes(weights + cache + 2**21)} at most"
        ) in caplog.text
    finally:
        stack.engine.close()


def told(output: RequestOutput) -> tuple[object, ...]:
    answer = output.outputs[0]
    return answer.token_ids, answer.logprobs


@pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
@pytest.mark.parametrize(("dtype", "length"), [("int16", 3000), ("int8", 8000)])
def test_c146_a_hit_in_quantized_blocks_is_what_computing_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, length: int
) -> None:
    """A needle at 60% of a long prompt, changed and unchanged: hot and cold have the same bits."""
    monkeypatch.setattr("tiny_gguf.CONTEXT", 8192)
    model = str(write_tiny_model(tmp_path / "long.gguf"))
    place = length * 6 // 10
    hay = [33 + (7 * i + i * i // 11) % 90 for i in range(length)]
    needles = [[*hay[:place], needle, *hay[place + 1 :]] for needle in (200, 210)]
    settings = {"kv_cache_dtype": dtype, "max_num_batched_tokens": 2048, "kv_cache_memory": "24MiB"}
    with LLM(model, enable_prefix_caching=False, **settings) as llm:
        (cold,) = llm.generate([needles[1]], PARAMS)
    with LLM(model, **settings) as llm:
        first, hot, *again = [llm.generate([p], PARAMS)[0] for p in (*needles, *needles)]
    assert (cold.num_cached_tokens, first.num_cached_tokens, hot.num_cached_tokens) == (0, 0, place)
    assert [output.num_cached_tokens for output in again] == [length - 1] * 2
    assert told(hot) == told(cold) != told(first)
    assert [told(output) for output in again] == [told(first), told(cold)]


@pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
def test_c146_the_dtype_is_part_of_what_a_block_is_found_by(
    tiny_model: Path, tmp_path: Path
) -> None:
    prompt = [65 + i % 50 for i in range(100)]
    found = []
    for dtype in ("int16", "int8", "f16", "int16"):
        with LLM(str(tiny_model), kv_cache_dtype=dtype, kv_disk=tmp_path) as llm:
            (output,) = llm.generate([prompt], PARAMS)
            found.append(output.num_cached_tokens)
        with LLM(str(tiny_model), kv_cache_dtype=dtype) as llm:
            (alone,) = llm.generate([prompt], PARAMS)
        assert told(output) == told(alone)
    assert found == [0, 0, 0, 96]
