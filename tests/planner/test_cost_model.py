"""The roofline, and the work that it is asked about."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.core.errors import ConfigError
from looseleaf.planner.cost_model import (
    REDUCTION_SECONDS,
    Roofline,
    StepPart,
    StepSummary,
    roofline,
    summarize,
)
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.models import load_shape
from looseleaf.planner.shape_work import ShapeCounter, StepWork

LLAMA = load_shape("meta-llama/Llama-3.1-8B")


def line(**settings: Any) -> Roofline:
    """A device of 100 FLOP/s and 10 B/s, all of which are reached."""
    given: dict[str, Any] = {"compute_efficiency": 1, "bandwidth_efficiency": 1}
    return Roofline(
        name="test", count=lambda parts: work(), peak_flops=100, bandwidth=10, **given | settings
    )


def work(**settings: int) -> StepWork:
    given = dict.fromkeys(StepWork._fields, 0)
    return StepWork(**given | settings)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"linear_flops": 200, "weight_bytes": 10}, 2),  # computing is longer
        ({"linear_flops": 200, "weight_bytes": 50}, 5),  # reading is
        ({"attention_flops": 200, "kv_read_bytes": 15, "kv_written_bytes": 15}, 3),
        ({"linear_flops": 200, "kv_read_bytes": 50}, 7),  # one after the other
        ({}, 0),
    ],
)
def test_the_longer_of_computing_and_reading(settings: dict[str, int], seconds: float) -> None:
    assert line().seconds_of(work(**settings)) == seconds


def test_efficiencies_and_overhead() -> None:
    slow = line(compute_efficiency=0.5, bandwidth_efficiency=0.25, step_overhead=3)
    assert slow.seconds_of(work(linear_flops=200)) == 7
    assert slow.seconds_of(work(weight_bytes=50)) == 23
    assert slow.seconds([]) == 0
    assert slow.seconds([StepPart(1, 0)]) == 3


def test_sums_over_devices() -> None:
    known = line(peer_bandwidth=4)
    shared = work(linear_flops=200, num_reductions=3, sent_bytes=40)
    assert known.seconds_of(shared) == pytest.approx(2 + 3 * REDUCTION_SECONDS + 10)
    assert line().seconds_of(shared) == 2  # nobody says how fast the link is
    assert ShapeCounter(LLAMA).count([StepPart(10, 0)]).num_reductions == 0
    four = ShapeCounter(LLAMA, tensor_parallel_size=4)
    for parts in ([StepPart(100, 900)], [StepPart(1, 5)] * 100):
        told = four.count(parts)
        assert told.num_reductions == 2 * 32
        # Each of the four sends three quarters twice, of 100 tokens' 4,096 numbers of 16 bits.
        assert told.sent_bytes == 2 * 32 * 100 * 4096 * 2 * 3 // 2
    assert next(four.decoding([5] * 100)) == told
    one, several = (
        roofline(load_hardware(name), four.count).seconds([StepPart(8192, 0)])
        for name in ("h100", "l40s")
    )
    assert several > one


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"compute_efficiency": 0}, "compute_efficiency is 0"),
        ({"bandwidth_efficiency": 2}, "at most 1.2"),
        ({"step_overhead": -1}, "step_overhead is -1"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        line(**settings)


def test_of_a_device_of_the_table() -> None:
    model = roofline(load_hardware("h100"), ShapeCounter(LLAMA).count, step_overhead=0.001)
    assert model.name == "roofline of NVIDIA H100 80GB (SXM)"
    assert (model.peak_flops, model.bandwidth) == (989.5e12, 3350e9)
    assert "assumptions" in model.known_error
    decode = model.seconds([StepPart(1, 1000)])
    assert 15.01e9 / 3350e9 < decode < 2 * 15.01e9 / 3350e9
    fp8 = roofline(load_hardware("h100"), ShapeCounter(LLAMA, "fp8").count, "fp8")
    assert fp8.peak_flops == 1979e12
    assert fp8.seconds([StepPart(2048, 0)]) < 0.6 * model.seconds([StepPart(2048, 0)])


def test_what_a_step_is_to_kernels() -> None:
    parts = [StepPart(1, 99), StepPart(1, 299), StepPart(10, 0), StepPart(4, 6)]
    assert summarize(parts) == StepSummary(4, 2, 400, 300, 14, 55 + 4 * 6 + 10, 2)
    assert summarize(parts).num_tokens == 16


# --- work of a shape ---


def test_the_work_of_a_token() -> None:
    one = ShapeCounter(LLAMA).count([StepPart(1, 999)])
    matrices = LLAMA.parameters.total - LLAMA.parameters.embedding - LLAMA.parameters.vectors
    assert one.linear_flops == 2 * matrices
    assert one.attention_flops == 32 * 4 * 4096 * 1000
    assert one.weight_bytes == 2 * (LLAMA.parameters.total - LLAMA.parameters.embedding + 4096)
    assert one.kv_read_bytes == 1000 * 131_072
    assert one.kv_written_bytes == 131_072


def test_a_chunk_reads_weights_and_context_once() -> None:
    counter = ShapeCounter(LLAMA)
    chunk, one = counter.count([StepPart(100, 900)]), counter.count([StepPart(1, 999)])
    assert chunk.kv_read_bytes == one.kv_read_bytes
    assert chunk.kv_written_bytes == 100 * one.kv_written_bytes
    assert chunk.weight_bytes == one.weight_bytes + 99 * 2 * 4096
    pairs = sum(900 + i for i in range(1, 101))
    assert chunk.attention_flops == 32 * 4 * 4096 * pairs


@given(st.integers(1, 200), st.integers(0, 900))
def test_windows_limit_what_is_read(num_new: int, stored: int) -> None:
    """Of a model with a window of 512 in 22 of 26 layers."""
    shape = load_shape("gemma-3-1b")
    done = ShapeCounter(shape).count([StepPart(num_new, stored)])
    positions = range(stored, stored + num_new)
    pairs = sum(4 * (p + 1) + 22 * min(p + 1, 512) for p in positions)
    assert done.attention_flops == 4 * 4 * 256 * pairs
    keys = len({k for p in positions for k in range(max(0, p - 511), p + 1)})
    assert done.kv_read_bytes == 1024 * (4 * (stored + num_new) + 22 * keys)


def test_experts_that_no_token_goes_to_are_not_read() -> None:
    shape = load_shape("qwen3-30b-a3b")
    counter = ShapeCounter(shape)
    one, many = (counter.count([StepPart(1, 0)] * num) for num in (1, 2000))
    experts = 2 * shape.parameters.experts
    rest = 2 * (shape.parameters.total - shape.parameters.embedding) - experts
    assert one.weight_bytes == pytest.approx(rest + experts * 8 / 128, rel=1e-3)
    assert many.weight_bytes == pytest.approx(rest + experts, rel=1e-3)
    assert one.linear_flops == pytest.approx(
        2 * (shape.active_parameters - shape.parameters.embedding), rel=1e-3
    )


def test_a_latent_is_read_once_for_all_heads() -> None:
    shape = load_shape("deepseek-v3")
    one = ShapeCounter(shape, tensor_parallel_size=8).count([StepPart(1, 999)])
    assert one.kv_read_bytes == 1000 * 70_272
    assert one.attention_flops == 61 * 2 * 128 * (2 * 512 + 64) * 1000 // 8
    chunk = ShapeCounter(shape).count([StepPart(2, 0)])
    assert chunk.attention_flops == 61 * 2 * 128 * (128 + 64 + 128) * 3


def test_devices_divide_the_work() -> None:
    parts = [StepPart(1, 500)] * 16
    whole, half = (ShapeCounter(LLAMA, tensor_parallel_size=n).count(parts) for n in (1, 2))
    assert half.linear_flops * 2 == whole.linear_flops
    assert half.attention_flops * 2 == whole.attention_flops
    assert half.kv_read_bytes * 2 == whole.kv_read_bytes
    assert half.weight_bytes * 2 == pytest.approx(whole.weight_bytes, rel=1e-3)
