"""Cases of kind 8, memory and capacity: what a sizing must say (../shared/cases/open.md)."""

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.planner.fit import Fit, FitSettings, fit
from looseleaf.planner.fit_report import as_json, as_text
from looseleaf.planner.fit_warnings import warnings
from looseleaf.planner.lengths import Lengths
from looseleaf.planner.models import load_shape

MIB, GIB = 2**20, 2**30


def pool(name: str, kv: int, **settings: object) -> Fit:
    """So many bytes for KV."""
    asked = FitSettings(memory=1024 * GIB, kv_cache_memory=kv, **settings)  # type: ignore[arg-type]
    return fit(load_shape(name), asked)


def test_c136_kv_heads_and_bytes_not_hidden_size_and_bits() -> None:
    sizing = pool("Qwen/Qwen2.5-7B", GIB).sizing
    assert sizing.bytes_per_token == 2 * 28 * 4 * 128 * 2 == 57_344
    assert sizing.request_bytes(3072) == 168 * MIB


def test_c137_grouped_queries_have_fewer_kv_heads() -> None:
    assert pool("meta-llama/Meta-Llama-3-8B", GIB).sizing.bytes_per_token == 128 * 1024


def test_c140_head_dim_is_not_hidden_size_over_heads() -> None:
    sizing = pool("Qwen/Qwen3-0.6B", 5 * GIB).sizing
    assert sizing.bytes_per_token == 114_688
    assert sizing.request_bytes(40_960) / GIB == pytest.approx(4.375)


def test_c142_a_context_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    """131,072 tokens of 32 KiB need 4 GiB; there are 3.9."""
    kv = int(3.9 * GIB)
    with pytest.raises(ConfigError) as caught:
        pool("meta-llama/Llama-3.2-1B", kv, max_model_len=131_072)
    longest = kv // (16 * 32_768) * 16
    for told in ("needs 4.0 GiB", "there are 3.9 GiB", f"max_model_len to {longest} or less"):
        assert told in str(caught.value)
    assert longest % 16 == 0
    assert pool("meta-llama/Llama-3.2-1B", kv, max_model_len=longest).max_model_len == longest
    lowered = pool("meta-llama/Llama-3.2-1B", kv)
    assert lowered.max_model_len == longest
    assert any("4.0 GiB" in warning.message for warning in warnings(lowered))


def test_c143_a_full_length_is_not_the_limit() -> None:
    answer = pool(
        "meta-llama/Llama-3.1-8B", 4 * GIB, max_model_len=8192, requests=(Lengths(161, 338),)
    )
    told = as_json(answer)
    assert told["kv_cache"]["num_tokens"] == 32_768
    assert told["kv_cache"]["num_blocks"] == 2048
    assert told["at_max_model_len"]["requests"] == 4.0
    assert told["requests"][0]["requests"] == 64.0
    text = as_text(answer)
    assert "161 + 338 tokens" in text
    assert "on average: as they come and go" in text


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_c144_the_shares_of_the_budget_are_told_and_add_up(share: float) -> None:
    settings = FitSettings(memory=80 * GIB, gpu_memory_utilization=share)
    answer = fit(load_shape("meta-llama/Llama-3.1-8B"), settings)
    budget = answer.budget
    assert budget.weights + budget.overhead + budget.kv == budget.usable == int(share * 80 * GIB)
    assert ("utilization" in {w.code for w in warnings(answer)}) == (share == 1.0)


def test_c144_bytes_for_the_kv_cache_win_over_shares() -> None:
    shape = load_shape("meta-llama/Llama-3.1-8B")
    few, many = (
        fit(shape, FitSettings(memory=80 * GIB, gpu_memory_utilization=s, kv_cache_memory=4 * GIB))
        for s in (0.1, 0.9)
    )
    assert few.num_blocks == many.num_blocks == 2048
    with pytest.raises(ConfigError, match=r"kv_cache_memory is 70\.0 GiB, but of 80\.0 GiB"):
        fit(shape, FitSettings(memory=80 * GIB, kv_cache_memory=70 * GIB))


@pytest.mark.parametrize(("prefix", "block_size"), [(10, 16), (3000, 3584)])
def test_c147_a_prefix_shorter_than_a_block_is_told(prefix: int, block_size: int) -> None:
    answer = pool("meta-llama/Llama-3.1-8B", 40 * GIB, shared_prefix=prefix, block_size=block_size)
    told = next(w.message for w in warnings(answer) if w.code == "prefix")
    assert f"{prefix} tokens is shorter than a block of {block_size}" in told
