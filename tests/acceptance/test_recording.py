"""What the native engine decides with the real model, the planner decides from its recording."""

import asyncio
from pathlib import Path

import pytest
from recorded_run import assert_same, record

from looseleaf.compiled import compiled

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(580),
    pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed"),
]

STEPS = 2_000


def test_the_planner_takes_the_native_engines_steps(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    settings = {
        "model": str(smollm2_path),
        "kv_cache_memory": "10MiB",
        "max_model_len": 200,
        "max_num_batched_tokens": 24,
        "max_num_seqs": 8,
        "threads": 1,
        "admission_headroom": 0,
        "scheduling_policy": "priority",
    }
    recorded = asyncio.run(record(path, 340, settings))
    result = assert_same(path, recorded)
    assert len(recorded.steps) >= STEPS
    counters = recorded.counters
    assert counters.preemptions > 20
    assert counters.prefix_hits > 1000
    assert counters.held_back > 0
    sequences = [sequence for step in recorded.steps for sequence in step.sequences]
    assert any(not s.samples and len(s.token_ids) <= 24 for s in sequences), "chunks of prompts"
    assert any("/beam-" in s.request_id for s in sequences)
    assert any(step.copies for step in recorded.steps)
    assert {str(outcome.reason) for outcome in result.outcomes} >= {"length", "abort"}
