"""Products and attention alone: what is asked of the kernels, and what becomes of their times."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_gguf import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS

from looseleaf import ConfigError
from looseleaf.bench import attention, gemm
from looseleaf.bench.kernels import kernels
from looseleaf.bench.shapes import (
    ModelShapes,
    Product,
    check_packed_type,
    model_shapes,
    parse_shapes,
)
from looseleaf.bench.timing import MAX_REPEATS, alternating_seconds, median_seconds, repeats_for
from looseleaf.compiled import compiled
from looseleaf.executors.packed_weights import MATRIX_TYPES

VOCABULARY = 259

native = pytest.mark.skipif(
    not hasattr(compiled(), "bench_matmul"), reason="the compiled part has no such measurements"
)


def nothing() -> None:
    pass


def test_shapes_of_a_model(tiny_model: Path) -> None:
    shapes = model_shapes(tiny_model)
    assert shapes.products == {
        Product(HEADS * HEAD_DIM, HIDDEN, "f32"): 2 * LAYERS,  # q and output
        Product(KV_HEADS * HEAD_DIM, HIDDEN, "f32"): 2 * LAYERS,
        Product(FFN, HIDDEN, "f32"): 2 * LAYERS,
        Product(HIDDEN, FFN, "f32"): LAYERS,
        Product(VOCABULARY, HIDDEN, "f32", of_logits=True): 1,
    }
    assert (shapes.num_heads, shapes.num_kv_heads, shapes.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)


def test_shapes_of_a_quantized_model(smollm2_path: Path) -> None:
    products = model_shapes(smollm2_path).products
    assert products == {
        Product(576, 576, "q4"): 60,
        Product(192, 576, "q4"): 60,
        Product(1536, 576, "q4"): 60,
        Product(576, 1536, "q4"): 30,
        Product(49152, 576, "q8", of_logits=True): 1,
    }


def test_shapes_in_words() -> None:
    assert parse_shapes("64x32, 8x96", "q4") == [Product(64, 32, "q4"), Product(8, 96, "q4")]
    assert parse_shapes("5x7", "f32") == [Product(5, 7, "f32")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "''"),
        ("64", "'64'"),
        ("0x32", "'0x32'"),
        ("64x32,", "''"),
        ("64x-32", "'64x-32'"),
        ("64x99999999", "'64x99999999'"),
        ("64x33", "33 inputs"),
    ],
)
def test_shapes_that_are_none(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_shapes(text, "q4")


def test_products_by_hand(fake_native: SimpleNamespace) -> None:
    """4e9 multiply-adds a second on two threads, of 20e9 in 8 bits and 8e9 in float32."""
    products = [Product(1000, 1000, "q4"), Product(100, 100, "f32")]
    told: list[None] = []
    found = gemm.measure_products(
        fake_native, products, threads=2, rounds=3, advance=lambda: told.append(None)
    )
    assert len(told) == len(found["products"]) == 2 * len(gemm.ROWS)
    assert found["peak_int8_gmadds_per_s"] == 20
    assert found["peak_f32_gmadds_per_s"] == 8
    assert found["read_gb_per_s"] == 20
    assert [result["rows"] for result in found["products"]] == 2 * list(gemm.ROWS)
    one, four = found["products"][:2]
    assert one == {
        "n": 1000,
        "k": 1000,
        "type": "q4",
        "rows": 1,
        "seconds": pytest.approx(0.25e-3),
        "gmadds_per_s": pytest.approx(4),
        "share_of_peak": pytest.approx(0.2),
        "gb_per_s": pytest.approx(2),
        "share_of_bandwidth": pytest.approx(0.1),
    }
    assert "gb_per_s" not in four
    assert four["seconds"] == pytest.approx(1e-3)
    assert found["products"][-1]["share_of_peak"] == pytest.approx(0.5)


def test_a_whole_model_in_products() -> None:
    products = {Product(2, 3, "q4"): 10, Product(9, 3, "q8", of_logits=True): 1}
    results = [
        {"n": n, "k": 3, "type": kind, "rows": rows, "seconds": seconds * rows**0.5}
        for n, kind, seconds in ((2, "q4", 0.01), (9, "q8", 0.1))
        for rows in (1, 4)
    ]
    assert gemm.passes(products, results) == [
        {
            "rows": 1,
            "decode_tokens_per_s": pytest.approx(5),
            "prefill_tokens_per_s": pytest.approx(10),
        },
        {
            "rows": 4,
            "decode_tokens_per_s": pytest.approx(10),
            "prefill_tokens_per_s": pytest.approx(20),
        },
    ]


def test_attention_by_hand(fake_native: SimpleNamespace) -> None:
    shapes = ModelShapes({}, 9, 3, 64)
    asked = attention.Attention(fake_native, shapes, threads=2, kv_type="f32", rounds=3)
    told: list[None] = []
    found = attention.measure_attention(asked, (16, 32), lambda: told.append(None))
    assert len(told) == attention.num_comparisons((16, 32)) == 6
    assert [(r["context"], r["block_size"]) for r in found["layouts"]] == [
        *((1024, 16), (1024, 32), (4096, 16), (4096, 32))
    ]
    layout = found["layouts"][0]
    assert layout["contiguous_s"] == pytest.approx(32 * 1024e-9)
    assert layout["ratio"] == pytest.approx(1.1)
    sharing = found["sharing"][0]
    assert (sharing["num_sequences"], sharing["shared_tokens"]) == (64, 4096)
    assert sharing["ratio"] == pytest.approx(64 * 4128 / (64 * 32 + 4096))


def test_attention_asks_for_what_it_says(fake_native: SimpleNamespace) -> None:
    calls: list[tuple[Any, ...]] = []
    fake_native.bench_attention = lambda *call: calls.append(call) or 1.0
    shapes = ModelShapes({}, 9, 3, 64)
    asked = attention.Attention(fake_native, shapes, threads=2, kv_type="f32", rounds=1)
    asked.compare_layouts(1024, 16)
    asked.compare_sharing(32)
    unrepeated = {(*call[:9], call[10]) for call in calls}
    assert unrepeated == {
        (32, 1024, 0, 9, 3, 64, 16, False, 2, "f32"),
        (32, 1024, 0, 9, 3, 64, 16, True, 2, "f32"),
        (64, 4128, 4096, 9, 3, 64, 32, False, 2, "f32"),
        (64, 4128, 0, 9, 3, 64, 32, False, 2, "f32"),
    }


@pytest.mark.parametrize(
    ("seconds", "repeats"), [(1.0, 1), (0.04, 1), (0.01, 5), (1e-4, 500), (0.0, MAX_REPEATS)]
)
def test_repeats_fill_the_time(seconds: float, repeats: int) -> None:
    assert repeats_for(lambda _: seconds) == repeats


def constant(values: list[float]) -> Callable[[int], float]:
    """One second, and from the time that is measured on the values in turn."""
    rest = iter([1.0, *values])
    return lambda _: next(rest)


def test_medians() -> None:
    assert median_seconds(constant([3.0, 1.0, 2.0]), 3) == 2.0
    first, second = constant([1.0, 9.0, 1.0]), constant([5.0, 4.0, 6.0])
    assert alternating_seconds(first, second, 3) == (1.0, 5.0)


def test_two_are_measured_in_turns() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[int], float]:
        return lambda _: order.append(name) or 1.0  # type: ignore[func-returns-value]

    alternating_seconds(run("a"), run("b"), 3)
    assert "".join(order) == "ab" + "abbaab"


def test_a_compiled_part_without_measurements_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.bench.kernels.compiled", lambda: SimpleNamespace())
    with pytest.raises(ConfigError, match="lacks bench_matmul, bench_attention"):
        kernels()
    monkeypatch.setattr("looseleaf.bench.kernels.compiled", lambda: None)
    with pytest.raises(ConfigError, match="without the compiled part"):
        kernels()


@native
def test_real_products() -> None:
    found = gemm.measure_products(
        kernels(),
        [Product(64, 64, kind) for kind in MATRIX_TYPES],
        rows=(1, 5),
        threads=1,
        rounds=1,
        advance=nothing,
    )
    assert len(found["products"]) == 2 * len(MATRIX_TYPES)
    assert all(result["seconds"] > 0 for result in found["products"])
    assert found["peak_int8_gmadds_per_s"] > 0.1
    assert found["peak_f32_gmadds_per_s"] > 0.1


@native
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("shared", [0, 48])
def test_real_attention(block_size: int, shared: int) -> None:
    for contiguous in (False, True):
        call = (3, 70, shared, 4, 2, 8, block_size, contiguous, 2, 2, "f32")
        assert kernels().bench_attention(*call) > 0


def test_an_unknown_type_of_weights_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'q3' is no type of packed weights; choose one of .*q4"):
        check_packed_type("q3")
