"""Traces as they come: real ones beside this checkout, and rows of every format."""

import json
from pathlib import Path

import pytest

from looseleaf.planner.trace import BadRow, TraceError, TraceRequest, read_trace
from looseleaf.planner.workload import poisson, prompt_tokens


@pytest.mark.parametrize(
    ("name", "num", "prompt", "output", "seconds", "hashed"),
    [
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 19_366, 1154.7, 211.1, 3501.7, 512),
        ("azure2023/AzureLLMInferenceTrace_code.csv", 8_819, 2047.9, 27.9, None, 512),
        ("mooncake_fast25/conversation_trace.jsonl", 12_031, None, None, None, 512),
        ("llmservingsim/sharegpt-300.jsonl", 300, None, None, None, 16),
        ("llmservingsim/RTX4090_Llama-3.1-8B/requests.jsonl", 300, None, None, None, 512),
    ],
)
def test_real_traces(
    shared_dir: Path,
    name: str,
    num: int,
    prompt: float | None,
    output: float | None,
    seconds: float | None,
    hashed: int,
) -> None:
    trace = read_trace(shared_dir / "traces" / name)
    requests = trace.requests
    assert (len(requests), trace.bad_rows, trace.timed) == (num, (), True)
    assert trace.hashed_tokens == hashed
    assert requests[0].arrival == 0
    if prompt is not None:
        mean = sum(r.num_prompt_tokens for r in requests) / num
        assert mean == pytest.approx(prompt, abs=0.06)
    if output is not None:
        assert sum(r.num_output_tokens for r in requests) / num == pytest.approx(output, abs=0.06)
    if seconds is not None:
        assert requests[-1].arrival == pytest.approx(seconds, abs=0.06)


def test_lengths_alone_have_no_times(shared_dir: Path) -> None:
    name = "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    trace = read_trace(shared_dir / "traces" / name)
    assert len(trace.requests) == 28_257
    assert not trace.timed


def test_responses_of_openai_apis(tmp_path: Path) -> None:
    rows = [
        {"created": 1700000010, "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
        {"timestamp": 1700000011.5, "response": {"usage": {"input_tokens": 6, "output_tokens": 0}}},
        {
            "custom_id": "a",
            "response": {
                "body": {"created_at": "2023-11-14T22:13:29Z", "usage": {"prompt_tokens": 1}}
            },
        },
        {
            "response": {
                "body": {
                    "created_at": "2023-11-14T22:13:29.25+00:00",
                    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
                }
            }
        },
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert trace.bad_rows == (BadRow(3, "output_length is missing"),)
    assert trace.requests == (
        TraceRequest(0.0, 1, 2),
        TraceRequest(0.75, 5, 7),
        TraceRequest(2.25, 6, 0),
    )


def test_bailian_has_seconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"chat_id": 1, "input_length": 20, "output_length": 3, "hash_ids": [7, 8], "turn": 1}
    path.write_text("".join(json.dumps(row | {"timestamp": t}) + "\n" for t in (2.5, 1.0)))
    trace = read_trace(path)
    assert trace.hashed_tokens == 16
    assert [request.arrival for request in trace.requests] == [0.0, 1.5]


def test_bad_rows_of_a_table_are_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "yesterday,1,1\n"
        "2023-11-16 18:15:47.6805901,-3,44\n"
        "2023-11-16 18:15:47.7,3,\n"
        "2023-11-16 18:15:48,3\n"
        "2023-11-16 18:15:47.6805901,396,109"
    )
    trace = read_trace(path)
    assert trace.requests[0] == TraceRequest(0.0, 374, 44)
    assert trace.requests[1].arrival == pytest.approx(1.0000001, abs=1e-6)
    assert trace.bad_rows == (
        BadRow(3, "its time 'yesterday' is neither a number nor a date"),
        BadRow(4, "ContextTokens is '-3', but it must be a whole number from 1 to 10000000"),
        BadRow(5, "GeneratedTokens is missing"),
        BadRow(6, "GeneratedTokens is missing"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row that can be used"),
        ("{}\n", "line 1 input_length is missing"),
        ("\x00\n", "line 1 is not JSON"),
        ('{"input_length": true, "output_length": 1}\n', "input_length is True, but"),
        ('{"input_length": 1, "output_length": 1e400}\n', "output_length is inf, but"),
        (
            '{"input_length": 1, "output_length": 1}\n'
            '{"timestamp": 1, "input_length": 1, "output_length": 1}\n',
            "some rows have a time and some have none",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="is no text"):
        read_trace(tmp_path / "binary.csv")


def test_prompts_are_equal_where_their_hashes_are() -> None:
    one = prompt_tokens(TraceRequest(0, 40, 1, (3, 4, 5)), 0, 16)
    other = prompt_tokens(TraceRequest(0, 37, 1, (3, 4, 6)), 1, 16)
    assert (len(one), len(other)) == (40, 37)
    assert one[:32] == other[:32]
    assert set(one[32:]).isdisjoint(other[32:])
    # Without a hash for the end, that is the request's alone.
    alone = prompt_tokens(TraceRequest(0, 20, 1, (3,)), 3, 16)
    assert alone[:16] == one[:16]
    assert set(alone[16:]).isdisjoint(prompt_tokens(TraceRequest(0, 20, 1, (3,)), 4, 16)[16:])


def test_random_times_have_the_rate() -> None:
    requests = [TraceRequest(None, 1, 1)] * 4000
    timed = list(poisson(requests, 5.0))
    last = timed[-1].arrival
    assert last is not None
    assert len(timed) / last == pytest.approx(5.0, rel=0.05)
    assert timed == list(poisson(requests, 5.0))
    assert timed != list(poisson(requests, 5.0, seed=1))
