"""Hit rates of recorded traffic (C-173), and rows that cannot be used."""

from pathlib import Path

import pytest

from looseleaf.planner.hit_rate import lru_hit_rate
from looseleaf.planner.trace import BadRow, TraceRequest, read_trace

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
        BadRow(5, "input_length is not a number of at least 1"),
        BadRow(6, "hash_ids is not a list of whole numbers"),
    )
