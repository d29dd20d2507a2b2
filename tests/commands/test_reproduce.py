"""`looseleaf reproduce`"""

import json
from pathlib import Path

import pytest


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Every request but the first begins with the 512 tokens of all."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * i, "input_length": 800, "output_length": 8, "hash_ids": [0, 1 + i]}
        for i in range(20)
    ]
    path.write_text("\n".join([*map(json.dumps, rows), "{"]))
    return path


def test_figures_for_programs(call) -> None:
    outcome = call("reproduce", "sosp23", "--quick", "--figure", "19,table1", "--json")
    report = outcome.json
    assert [figure["figure"] for figure in report["figures"]] == ["Fig. 19", "Table 1"]
    slots = report["figures"][1]["rows"][0]["cells"]["slots, thousands"]
    assert slots == {
        "paper": 15.7,
        "ours": 15.728,
        "difference": pytest.approx(0.028),
        "in_range": True,
    }
    assert "roofline" in report["assumed"]
    assert "19 " in outcome.err  # how long it took


def test_figures_for_people(call) -> None:
    outcome = call("reproduce", "sosp23", "--figure", "table1")
    assert outcome.out.startswith("Table 1: set-ups\n")
    assert "difference   in range (±2%)" in outcome.out
    assert "In range: 6 of 6 numbers that the paper prints." in outcome.out
    assert "Assumed: The scheduler" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert "table1 0.0" in outcome.err  # how long it took


def test_hit_rates(call, trace: Path) -> None:
    arguments = ("reproduce", "mooncake", "--trace", str(trace), "--capacity", "1,100")
    report = call(*arguments, "--live", "50", "--json").json
    assert (report["requests"], report["bad_rows"], report["block_size"]) == (20, 1, 512)
    small, large, infinite = report["curve"]
    assert (small["capacity"], small["by_blocks"]) == (1, 0)
    assert large["by_blocks"] == infinite["by_blocks"] == 19 / 40
    assert infinite["by_tokens"] == pytest.approx(19 * 512 / (20 * 800))
    (live,) = report["live"]
    assert live["capacity"] == 50
    assert live["by_blocks"] == live["lru"]["by_blocks"] == 19 / 40
    out = call(*arguments, "--live", "50").out
    assert "window: the whole trace, from an empty cache" in out
    assert "live, 50 blocks of 512" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("sosp23", "--figure", "2,99"), "no figure '99'"),
        (("mooncake", "--trace", "none.jsonl"), "none.jsonl cannot be read"),
        (("mooncake", "--trace", "none.jsonl", "--capacity", "1,x"), "no list of sizes"),
    ],
    ids=str,
)
def test_mistakes_are_told(call, arguments: tuple[str, ...], told: str) -> None:
    outcome = call("reproduce", *arguments)
    assert outcome.status == 2
    assert told in outcome.err


def test_a_trace_without_hashes_has_no_hit_rate(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 8, "output_length": 8, "hash_ids": []}')
    outcome = call("reproduce", "mooncake", "--trace", str(path))
    assert (outcome.status, outcome.out) == (2, "")
    assert "its rows need hash_ids" in outcome.err
