"""`looseleaf demo`: the walk-through, the simulation against its exact expectation, the chats.

The figures are those of Kwon et al.'s paged memory, worked out by hand: see each test.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import KV_BYTES_PER_TOKEN

from looseleaf.demo import sharing, waste
from looseleaf.demo.chats import QUESTIONS, SYSTEM
from looseleaf.engine.build import load_text
from looseleaf.weights.gguf import GGUFFile

SHARING = {
    "block_size": 4,
    "lengths": {"sys": 8, "A": 11, "B": 10, "C": 10},
    "blocks_without_sharing": 11,
    "blocks_without_sharing_or_sys": 9,
    "blocks_used": 5,
    "copies": 1,
    "tables": {"sys": [0, 1], "A": [0, 1, 2], "B": [0, 1, 3], "C": [0, 1, 4]},
    "ref_counts": [4, 4, 1, 1, 1],
    "in_use_after_free": [5, 4, 3, 0],
}


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    return waste.simulate()


@pytest.fixture(scope="module", params=[1_000, 77_777])
def simulated_otherwise(request: pytest.FixtureRequest) -> dict[str, Any]:
    return waste.simulate(first_seed=request.param)


def test_the_walk_through_is_exact() -> None:
    assert sharing.walk_through() == SHARING
    assert sharing.walk_through() == SHARING


def test_expectations_are_exact() -> None:
    """The mean length is .7 * 271.5 + .25 * 1279.5 + .05 * 3071.5 = 663.5, and 7.5 slots of a last
    block are empty on average, as all three ranges are whole multiples of 16 tokens long."""
    exact = waste.exact()
    assert exact["contiguous"] == pytest.approx(1 - 663.5 / 4096, abs=1e-12)
    assert exact["paged"] == pytest.approx(7.5 / 671, abs=1e-12)
    assert exact["concurrency"] == pytest.approx(4096 / 671, abs=1e-12)
    assert exact["power_of_two"] == pytest.approx(0.250, abs=5e-4)
    assert exact["concurrency_over_power_of_two"] == pytest.approx(1.32, abs=5e-3)
    assert exact["per_sequence_paged"] == pytest.approx(0.0298, abs=5e-5)


BY_BLOCK_SIZE = {
    **{"1": 0.0, "4": 0.0023, "8": 0.0052, "16": 0.0112},
    **{"32": 0.0228, "64": 0.0444, "128": 0.0847, "256": 0.156},
}


def test_every_exact_figure_is_inside_its_confidence_interval(simulated) -> None:
    assert (simulated["seeds"], simulated["sequences"]) == (200, 1000)
    assert (simulated["max_length"], simulated["block_size"]) == (4096, 16)
    for name in ("contiguous", "paged", "power_of_two", "concurrency", "per_sequence_paged"):
        low, high = simulated["confidence_95"][name]
        assert low < simulated["exact"][name] < high, name
        assert low < simulated[name] < high, name
        half = 1.96 * simulated["single_run_sd"][name] / math.sqrt(200)
        assert high - low == pytest.approx(2 * half)


def test_the_default_figures_are_those_of_the_write_up(simulated) -> None:
    assert simulated["contiguous"] == pytest.approx(0.8381, abs=5e-4)
    assert simulated["paged"] == pytest.approx(0.01121, abs=5e-5)
    assert simulated["concurrency"] == pytest.approx(6.11, abs=0.02)
    for size, expected in BY_BLOCK_SIZE.items():
        assert simulated["by_block_size"][size] == pytest.approx(expected, rel=0.01, abs=5e-5)
        assert simulated["exact_by_block_size"][size] == pytest.approx(expected, abs=5.1e-4)
    assert list(simulated["by_block_size"]) == list(BY_BLOCK_SIZE)


def test_other_seeds_agree(simulated, simulated_otherwise) -> None:
    """Means within four standard errors of the exact figure; spreads as published, within 20%."""
    for name, spread in (("contiguous", 0.0057), ("paged", 0.00044), ("concurrency", 0.21)):
        exact = simulated_otherwise["exact"][name]
        assert simulated_otherwise[name] != simulated[name]
        assert simulated_otherwise[name] == pytest.approx(exact, abs=4 * spread / math.sqrt(200))
        assert simulated_otherwise["single_run_sd"][name] == pytest.approx(spread, rel=0.2)
    for size, expected in BY_BLOCK_SIZE.items():
        found = simulated_otherwise["by_block_size"][size]
        assert found == pytest.approx(expected, rel=0.02, abs=5e-5)


def test_single_runs_spread_as_published() -> None:
    """95% of them within 82.6..84.9%, 1.04..1.20% and 5.70..6.53 times."""
    inside = {"contiguous": 0, "paged": 0, "concurrency": 0}
    runs = 400
    for seed in range(5_000, 5_000 + runs):
        lengths = waste.draw_lengths(1_000, seed)
        blocks = [-(-length // 16) * 16 for length in lengths]
        inside["contiguous"] += 0.826 < waste.waste(lengths, [4096] * 1_000) < 0.849
        inside["paged"] += 0.0104 < waste.waste(lengths, blocks) < 0.0120
        inside["concurrency"] += 5.70 < 4096 * 1_000 / sum(blocks) < 6.53
    for name, count in inside.items():
        assert 0.91 < count / runs < 0.985, name


def test_lengths_have_the_published_mix() -> None:
    lengths = waste.draw_lengths(100_000, seed=9)
    assert (min(lengths), max(lengths)) == (32, 4095)
    assert statistics.mean(lengths) == pytest.approx(663.5, rel=0.01)
    for low, high, share in ((32, 511, 0.70), (512, 2047, 0.25), (2048, 4095, 0.05)):
        found = sum(low <= length <= high for length in lengths) / len(lengths)
        assert found == pytest.approx(share, abs=0.006)
    assert waste.draw_lengths(50, seed=1) == waste.draw_lengths(50, seed=1)
    assert waste.draw_lengths(50, seed=1) != waste.draw_lengths(50, seed=2)


def test_json_without_a_model_needs_none(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.engine.build.resolve", None)
    answer = call("demo", "--json", "--skip-model", "--seeds", "3").json
    assert list(answer) == ["sharing", "waste"]
    assert answer["sharing"] == SHARING
    assert answer["waste"] == waste.simulate(3)


def test_json_of_all_three_parts(call, roomy_model: Path) -> None:
    answer = call("demo", "--json", "--model", str(roomy_model)).json
    assert list(answer) == ["sharing", "waste", "model"]
    assert answer["sharing"] == SHARING
    figures = answer["waste"]
    assert figures["seeds"] == 200
    for name in ("contiguous", "paged", "concurrency"):
        low, high = figures["confidence_95"][name]
        assert low < figures["exact"][name] < high
    assert figures.keys() >= {"contiguous", "paged", "concurrency", "by_block_size"}
    _check_model(answer["model"], roomy_model)


def _prompts(path: Path) -> list[list[int]]:
    with GGUFFile(path) as file:
        text = load_text(file)
    chats = [[("system", SYSTEM), ("user", question)] for question in QUESTIONS]
    rendered = [
        text.chat_template.render([{"role": role, "content": content} for role, content in chat])
        for chat in chats
    ]
    return [text.tokenizer.encode(r, add_special=True, parse_special=True) for r in rendered]


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _check_model(model: dict[str, Any], path: Path) -> None:
    assert model["model"] == "Tiny"
    assert model["block_size"] == 16
    assert model["sequences_running"] == len(model["chats"]) == 8
    assert [chat["question"] for chat in model["chats"]] == list(QUESTIONS)
    assert model["preemptions"] == 0
    for total, part in (("prompt_tokens", "prompt_tokens"), ("cached_tokens", "cached_tokens")):
        assert model[total] == sum(chat[part] for chat in model["chats"])
    assert model["hit_rate"] == model["cached_tokens"] / model["prompt_tokens"]
    # Reuse is exact to the token: whatever an earlier chat began with as well.
    prompts = _prompts(path)
    assert [chat["prompt_tokens"] for chat in model["chats"]] == [len(p) for p in prompts]
    cached = [max((_common(a, b) for b in prompts[:i]), default=0) for i, a in enumerate(prompts)]
    assert [chat["cached_tokens"] for chat in model["chats"]] == cached
    saved = model["blocks_without_sharing"] - model["blocks_used"]
    assert saved >= 7 * (min(cached[1:]) // 16)
    assert model["blocks_saved_fraction"] == saved / model["blocks_without_sharing"]
    assert model["kv_bytes_saved"] == saved * 16 * KV_BYTES_PER_TOKEN
    use = model["utilisation"]
    assert 0 < use["pool"] < use["physical"] <= 1 < use["effective"]
    assert 0 <= model["waste"] <= 1 - use["physical"] + 1e-12
    assert 8 <= model["output_tokens"] <= 8 * 40
    assert model["output_tokens_per_second"] == pytest.approx(
        model["output_tokens"] / model["seconds"]
    )


def test_without_prefix_caching_nothing_is_found_stored(call, roomy_model: Path) -> None:
    answer = call(
        *("demo", "--json", "--seeds", "2", "--model", str(roomy_model)),
        "--no-enable-prefix-caching",
    ).json["model"]
    assert answer["cached_tokens"] == answer["hit_rate"] == answer["kv_bytes_saved"] == 0
    assert answer["blocks_without_sharing"] == answer["blocks_used"]


def test_people_see_the_same_figures(call, roomy_model: Path) -> None:
    outcome = call("demo", "--seeds", "20", "--model", str(roomy_model))
    assert (outcome.status, outcome.err) == (0, "")
    text = " ".join(outcome.out.split())
    figures = waste.simulate(20)
    for told in (
        "11 blocks without sharing, 5 with.",
        "1 copy on write",
        "block 0: 4, block 1: 4, block 2: 1, block 3: 1, block 4: 1",
        "In use after freeing sys, A, B, C in turn: 5, 4, 3, 0.",
        "mean of 20 seeded runs",
        f"{figures['contiguous']:.2%}",
        f"{figures['paged']:.2%}",
        "83.80%",
        "1.12%",
        f"{figures['concurrency']:.2f} times as many sequences",
        f"the mean over sequences is {figures['per_sequence_paged']:.2%} with",
        "Tiny: eight chats that share a system prompt",
        "8 sequences running at once",
        "blocks without sharing,",
        "What is the capital of France?",
    ):
        assert told in text, told


def test_a_context_too_small_for_the_chats_is_said_after_the_rest(call, tiny_model: Path) -> None:
    outcome = call("demo", "--seeds", "2", "--model", str(tiny_model))
    outcome.check_refused("at most 512")
    assert "11 blocks without sharing, 5 with." in outcome.out
    assert "Traceback" not in outcome.out
