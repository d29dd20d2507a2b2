"""Hit rates of recorded traffic (C-173), and rows that cannot be used."""

from pathlib import Path

import pytest

from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.hit_rate import HitRate, hit_rate, lru_hit_rate
from looseleaf.planner.live_hits import Deployment, live_hits
from looseleaf.planner.models import load_shape
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace import BadRow, Trace, TraceRequest, read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_fast25"
CAPACITIES = (1_000, 3_000, 10_000, 30_000, 50_000, 100_000, None)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("conversation", (4.5, 6.5, 21.1, 32.6, 35.5, 36.4, 36.64)),
        ("synthetic", (8.3, 18.8, 42.4, 62.4, 64.0, 64.0, 63.96)),
    ],
)
def test_mooncake_has_the_published_hit_rates(name: str, percent: tuple[float, ...]) -> None:
    trace = read_trace(TRACES / f"{name}_trace.jsonl")
    assert trace.bad_rows == ()
    prompts = [request.hash_ids for request in trace.requests]
    rates = [100 * lru_hit_rate(prompts, capacity) for capacity in CAPACITIES]
    assert rates == pytest.approx(percent, abs=0.1)
    assert rates == sorted(rates)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "by_blocks", "by_tokens", "last_half", "of_3m_and_50m_tokens"),
    [
        ("conversation", 36.64, 37.36, 39.8, (37.0, 99.2)),
        ("synthetic", 63.96, 65.12, 86.3, (48.4, 100.0)),
    ],
)
def test_mooncake_by_tokens_and_by_the_window(
    name: str,
    by_blocks: float,
    by_tokens: float,
    last_half: float,
    of_3m_and_50m_tokens: tuple[float, float],
) -> None:
    trace = read_trace(TRACES / f"{name}_trace.jsonl")
    whole = hit_rate(trace)
    assert 100 * whole.by_blocks == pytest.approx(by_blocks, abs=0.1)
    assert 100 * whole.by_tokens == pytest.approx(by_tokens, abs=0.1)
    late = hit_rate(trace, since=len(trace.requests) // 2)
    assert 100 * late.by_tokens == pytest.approx(last_half, abs=0.1)
    found = [
        100 * hit_rate(trace, tokens // 512).by_blocks / whole.by_blocks
        for tokens in (3_000_000, 50_000_000)
    ]
    assert found == pytest.approx(of_3m_and_50m_tokens, abs=0.1)


def test_under_live_load_running_requests_hold_blocks() -> None:
    """Who comes one by one finds what LRU keeps; who comes at once finds less, and never more than
    an infinite cache has."""
    rows = [
        TraceRequest(0.0, 64 + 32 * (i % 3), 40, (1, 2, *range(10 * i, 10 * i + i % 3)))
        for i in range(1, 31)
    ] * 2
    deployment = Deployment(load_shape("llama-7b"), load_hardware("a100-40gb"), 1)

    def live(gap: float, capacity: int) -> tuple[HitRate, Summary]:
        requests = tuple(r._replace(arrival=i * gap) for i, r in enumerate(rows))
        found = live_hits(Trace(requests, (), True, 32), deployment, capacity)
        assert found.summary.requests == len(rows)
        return found.rate, found.summary

    trace = Trace(tuple(rows), (), True, 32)
    infinite = hit_rate(trace)
    assert live(100, 1000)[0].by_blocks == infinite.by_blocks
    alone = live(100, 20)[0]
    assert alone.by_blocks < infinite.by_blocks
    together, summary = live(0.001, 20)
    assert summary.waiting_peak > 10
    assert together.by_blocks < infinite.by_blocks


def test_a_prefix_hits_up_to_its_first_missing_block() -> None:
    prompts = [(1, 2, 3), (1, 9, 3), (1, 2, 3)]
    assert lru_hit_rate(prompts) == 4 / 9
    assert lru_hit_rate(prompts, 0) == 0
    assert lru_hit_rate([]) == 0
    with pytest.raises(ValueError, match="-1 blocks"):
        lru_hit_rate(prompts, -1)


def test_bad_rows_are_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 1500, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}\n'
        "\n"
        "{broken\n"
        "[1]\n"
        '{"timestamp": 1, "input_length": 0, "output_length": 3, "hash_ids": []}\n'
        '{"timestamp": 1, "input_length": 1, "output_length": 3, "hash_ids": ["a"]}\n'
    )
    trace = read_trace(path)
    assert trace.requests == (TraceRequest(0.0, 600, 3, (4, 5)),)
    assert trace.bad_rows == (
        BadRow(3, "is not JSON"),
        BadRow(4, "is not an object"),
        BadRow(5, "input_length is 0, but it must be a whole number from 1 to 10000000"),
        BadRow(6, "hash_ids is not a list of whole numbers"),
    )
