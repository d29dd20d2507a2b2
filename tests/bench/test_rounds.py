"""Workloads on a tiny model, and the arithmetic from steps to speeds."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import KV_BYTES_PER_TOKEN

from looseleaf import LLM, ConfigError, LooseleafError
from looseleaf.bench.rounds import Round, StepRecord, measure, run_round, summarize
from looseleaf.bench.workloads import WORKLOADS, Workload
from looseleaf.core.request import RequestId

A, B = RequestId("a"), RequestId("b")

SHARED = Workload(
    name="shared",
    description="",
    num_requests=4,
    shared_tokens=32,
    own_tokens=8,
    max_tokens=4,
)
SAMPLES = Workload(name="samples", description="", own_tokens=20, num_samples=3, max_tokens=6)


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), kv_cache_memory=2**20, max_num_batched_tokens=64) as llm:
        yield llm


def run(llm: LLM, workload: Workload) -> Round:
    return run_round(llm, workload, workload.prompts(llm.stack.tokenizer.vocab_size))


def test_one_request_alone_by_hand() -> None:
    """A prompt of 96 tokens in two steps, then 4 tokens at 50 ms each."""
    records = [
        StepRecord(0.2, 64, (), 4),
        StepRecord(0.3, 32, (A,), 6),
        StepRecord(0.35, 0, (A,), 6),
        StepRecord(0.4, 0, (A,), 6),
        StepRecord(0.45, 0, (A,), 7),
    ]
    found = summarize(records, 0.5, num_cached=0, num_preemptions=0)
    assert found == Round(
        wall_s=0.5,
        ttft_ms=pytest.approx(300),
        max_ttft_ms=pytest.approx(300),
        tpot_ms=pytest.approx(50),
        prefill_tokens_per_s=pytest.approx(96 / 0.3),
        decode_tokens_per_s=pytest.approx(3 / 0.15),
        output_tokens_per_s=pytest.approx(4 / 0.5),
        prompt_tokens_computed=96,
        prompt_tokens_cached=0,
        steps=5,
        preemptions=0,
        blocks_peak=7,
    )


def test_a_step_of_both_kinds_counts_for_prefill() -> None:
    records = [
        StepRecord(0.1, 10, (A,), 1),
        StepRecord(0.3, 10, (A, B), 2),
        StepRecord(0.4, 0, (A, B), 2),
        StepRecord(0.5, 0, (B,), 1),
    ]
    found = summarize(records, 0.5, num_cached=5, num_preemptions=1)
    assert found.prefill_tokens_per_s == pytest.approx(20 / 0.3)
    assert found.decode_tokens_per_s == pytest.approx(3 / 0.2)
    assert found.output_tokens_per_s == pytest.approx(6 / 0.5)
    assert found.ttft_ms == pytest.approx(200)
    assert found.max_ttft_ms == pytest.approx(300)
    assert found.tpot_ms == pytest.approx(1000 * (0.15 + 0.1) / 2)
    assert (found.prompt_tokens_cached, found.preemptions) == (5, 1)


def test_without_a_second_token_there_is_no_decoding() -> None:
    found = summarize([StepRecord(0.1, 8, (A,), 1)], 0.1, num_cached=0, num_preemptions=0)
    assert found.tpot_ms is None
    assert found.decode_tokens_per_s is None


def test_a_shared_prefix_is_computed_once_in_every_round(llm: LLM) -> None:
    for _ in range(3):
        found = run(llm, SHARED)
        assert found.prompt_tokens_computed == 32 + 4 * 8
        assert found.prompt_tokens_cached == 3 * 32
        assert found.blocks_peak == 2 + 4  # 16 tokens each; 8 + 3 stored ones of their own
    assert not llm.engine.has_work
    assert not llm.engine.observers


def test_samples_of_one_prompt(llm: LLM) -> None:
    found = run(llm, SAMPLES)
    assert (found.prompt_tokens_computed, found.prompt_tokens_cached) == (20, 0)
    assert found.steps == 6
    assert found.output_tokens_per_s * found.wall_s == pytest.approx(3 * 6)


def test_without_sharing_everything_is_computed(tiny_model: Path) -> None:
    for settings in ({"enable_prefix_caching": False}, {"kv_allocator": "contiguous-max"}):
        with LLM(str(tiny_model), kv_cache_memory=2**22, **settings) as llm:
            found = run(llm, SHARED)
            assert found.prompt_tokens_computed == 4 * 40
            assert found.prompt_tokens_cached == 0


def test_what_is_computed_again_is_counted_again(tiny_model: Path) -> None:
    workload = replace(SHARED, shared_tokens=0, own_tokens=16, max_tokens=40)
    memory = 10 * 16 * KV_BYTES_PER_TOKEN  # 10 blocks
    settings = {"kv_cache_memory": memory, "max_num_seqs": 4, "admission_headroom": 0}
    with LLM(str(tiny_model), **settings) as llm:
        found = run(llm, workload)
    assert found.preemptions > 0
    assert found.prompt_tokens_computed >= 4 * 16
    assert found.blocks_peak <= 10


def test_times_are_in_order(llm: LLM) -> None:
    found = run(llm, SHARED)
    assert found.tpot_ms is not None
    assert 0 < found.tpot_ms < found.ttft_ms <= found.max_ttft_ms < 1000 * found.wall_s


def test_measuring_takes_medians_of_the_rounds_after_the_warm_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls = iter([100.0, 100.0, 3.0, 1.0, 2.0])
    example = run(llm, SHARED)

    def fake(*_: Any) -> Round:
        return replace(example, wall_s=next(walls), tpot_ms=None)

    monkeypatch.setattr("looseleaf.bench.rounds.run_round", fake)
    told: list[None] = []
    found = measure(llm, SHARED, rounds=3, warmup=2, advance=lambda: told.append(None))
    assert len(told) == 5
    assert found["wall_s"] == 2.0
    assert found["wall_s_of_rounds"] == [3.0, 1.0, 2.0]
    assert found["tpot_ms"] is None
    assert found["rounds"] == 3
    assert (found["num_requests"], found["num_samples"]) == (4, 1)
    assert (found["prompt_tokens"], found["output_tokens"]) == (160, 16)
    assert {field.name for field in fields(Round)} <= found.keys()


def test_a_workload_that_does_not_fit_is_refused(llm: LLM) -> None:
    with pytest.raises(ConfigError) as refused:
        measure(llm, WORKLOADS["long-context"], rounds=1, warmup=0, advance=lambda: None)
    for told in ("long-context", "4160 tokens", "max_model_len is 512", "context"):
        assert told in str(refused.value)


def test_an_answer_that_ends_early_is_no_result(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = replace(SHARED, max_tokens=3)
    real = llm.generate

    def generate(prompts: Any, params: Any, **options: Any) -> Any:
        return real(prompts, replace(params, max_tokens=cut.max_tokens), **options)

    monkeypatch.setattr(llm, "generate", generate)
    with pytest.raises(LooseleafError, match="has 3 of 4 tokens"):
        run(llm, SHARED)


def test_wrong_guesses_are_no_output(tiny_model: Path) -> None:
    workload = Workload(name="w", description="", own_tokens=20, max_tokens=12)
    prompts = [[65 + i % 5 for i in range(20)]]
    with LLM(str(tiny_model), max_model_len=64) as llm:
        plain = run_round(llm, workload, prompts)
        llm.engine.scheduler.drafter = lambda request, room: [1] * min(room, 4)
        guessing = run_round(llm, workload, prompts)
        assert llm.engine.scheduler.counters.draft_tokens > 20
    for measured in (plain, guessing):
        assert measured.output_tokens_per_s * measured.wall_s == pytest.approx(12)
