"""What an engine records, a planner decides again."""

import asyncio
from pathlib import Path

import pytest
from recorded_run import assert_same, record

from looseleaf import LLM, SamplingParams
from looseleaf.core.errors import ConfigError
from looseleaf.engine.journal import Journal
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.recording import RecordingError, events, exact_replay, read_recording
from looseleaf.planner.trace_types import BadRow

SETTINGS = {
    "kv_cache_memory": 24 * 16 * 64 * 4,
    "max_num_batched_tokens": 48,
    "max_model_len": 200,
    "admission_headroom": 0,
    "executor": "reference",
}


@pytest.mark.parametrize(("policy", "guesses"), [("fcfs", 3), ("priority", 0), ("fair", 0)])
def test_a_planner_decides_what_the_engine_did(
    tiny_model: Path, tmp_path: Path, policy: str, guesses: int
) -> None:
    path = tmp_path / "recording"
    settings = SETTINGS | {"model": str(tiny_model), "scheduling_policy": policy}
    recorded = asyncio.run(record(path, 36, settings | {"speculative_ngram": guesses}))
    result = assert_same(path, recorded)
    assert len(recorded.steps) > 100
    counters = recorded.counters
    assert counters.preemptions > 0
    assert counters.prefix_hits > 0
    assert {str(outcome.reason) for outcome in result.outcomes} >= {"length", "abort"}


def test_another_start_decides_something_else(tiny_model: Path, tmp_path: Path) -> None:
    """So that the test above can fail: one request less, and the steps are others."""
    path = tmp_path / "recording"
    recorded = asyncio.run(record(path, 20, SETTINGS | {"model": str(tiny_model)}))
    lines = path.read_bytes().split(b"\n")
    first = next(i for i, line in enumerate(lines) if b'"add"' in line)
    path.write_bytes(b"\n".join(lines[:first] + lines[first + 1 :]))
    with pytest.raises(Exception):  # noqa: B017, PT011  # steps that differ, or tokens missing
        assert_same(path, recorded)


def test_offline_answers_can_be_recorded_too(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)
        llm.generate([[1, 2, 3], [1, 2, 4]], SamplingParams(max_tokens=5, ignore_eos=True))
        llm.engine.forget_cache()
        tokenizer = llm.get_tokenizer()
    recording = read_recording(path)
    assert recording.settings.model == str(tiny_model)
    assert [type(asked).__name__ for asked in recording.asked] == [
        "Added",
        "Added",
        "CacheForgotten",
    ]
    replay = exact_replay(recording)
    outcomes = replay.run(events(recording, tokenizer)).outcomes
    assert [(o.num_prompt_tokens, o.num_output_tokens) for o in outcomes] == [(3, 5), (3, 5)]


def test_a_recording_that_was_cut_off_is_read_up_to_there(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, ignore_eos=True))
    whole = read_recording(path)
    path.write_bytes(path.read_bytes()[:-20])
    cut = read_recording(path)
    assert cut.steps == whole.steps[:-1]
    path.write_bytes(path.read_bytes().replace(b'"step"', b'"leap"'))
    with pytest.raises(RecordingError, match="line 3"):
        read_recording(path)


@pytest.mark.parametrize("text", ["", "{}", "no JSON", '{"type":"add"}'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recording"
    path.write_text(text)
    with pytest.raises(RecordingError, match="is no recording"):
        read_recording(path)


def test_a_newer_recording_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":99'))
    with pytest.raises(RecordingError, match="version 99"):
        read_recording(path)


def test_what_cannot_be_replayed_is_not_recorded(tiny_model: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_model), kv_cache_memory=2**20, swap_space=2**20) as llm:
        with pytest.raises(ConfigError, match="swap_space cannot be replayed"):
            Journal(tmp_path / "recording", llm.engine, llm.stack.settings, llm.stack.memory)
        assert llm.engine.journal is None
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        path = tmp_path / "nowhere" / "recording"
        with pytest.raises(ConfigError, match="cannot be written: No such file"):
            Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        Journal(full, llm.engine, llm.stack.settings, llm.stack.memory)
        params = SamplingParams(max_tokens=150, ignore_eos=True)
        (output,) = llm.generate([[1, 2, 3]], params)
    assert len(output.outputs[0].token_ids) == 150
    assert "no more is recorded" in caplog.text


def test_a_recording_is_a_workload(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    shared = [7] * 40
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        Journal(path, llm.engine, llm.stack.settings, llm.stack.memory)
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        llm.generate([[*shared, 1], [*shared, 2]], params)
        llm.generate([[*shared, 3]], SamplingParams(n=3, max_tokens=7, ignore_eos=True))
    trace = read_workload(path)
    assert trace.hashed_tokens == 16
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [
        (41, 5),
        (41, 5),
        (41, 7),
    ]
    assert [r.num_samples for r in trace.requests] == [1, 1, 3]
    assert len({r.hash_ids for r in trace.requests}) == 1
    # Cut off in the middle of the last answer: it is told, not dropped silently.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    cut = read_workload(path)
    assert len(cut.requests) == 2
    assert cut.bad_rows == (BadRow(3, "did not end in the recording"),)
