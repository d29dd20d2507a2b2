"""What the totals of passes say about multiply-adds, bytes and the roofline, worked out by hand.

The tiny llama has 16 ops in a layer, at 1 and at 17, and in the second two more, sampled_rows,
after attention; then rms_norm (35), linear and logits. It is 32 wide, has 4 heads on 2 KV heads of
8, 48 in the feed-forward part, 96 tokens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from looseleaf.executors.native_profile import (
    PassTotals,
    Peaks,
    Work,
    as_dict,
    by_layer,
    by_name,
    passes_done,
)
from looseleaf.program.op import Add, Linear, Rope, SiluMul, WriteKV
from looseleaf.program.program import Program

# Three steps: a prompt of 5 tokens, then twice one token; the first computes no logits.
CALLS, ROWS, SAMPLED = 3, 5 + 1 + 1, 2
POSITIONS = 1 + 2 + 3 + 4 + 5 + 6 + 7
CONTEXTS = 5 + 6 + 7

LAYER = [
    *(("norm", 0), ("project", 1), ("rope", 4), ("attention", 7), ("project", 8)),
    *(("norm", 10), ("gate", 11), ("project", 14)),
]
"""(pass, its first op in the layer), where weights are quantized."""

LAST_LAYER = [
    *LAYER[:4],
    *(("sampled_rows", 8), ("sampled_rows", 9), ("project", 10)),
    *(("norm", 12), ("gate", 13), ("project", 16)),
]
AFTER_ATTENTION = 17 + 8
"""Of the last layer: this op and all others have only the rows of which logits are wanted."""

QKV, OUTPUT, GATE_UP, DOWN = 64 * 32, 32 * 32, 2 * 48 * 32, 32 * 48
"""Numbers in the matrices of a pass."""

PEAKS = Peaks(int8_madds=4e6, f32_madds=1e6, bytes=2e6)


def kind_totals(program: Program) -> list[PassTotals]:
    """As the runtime would have them: a pass takes as many ms as is its number in order."""
    passes = [("embed", 0)]
    passes += [(kind, 1 + first) for kind, first in LAYER]
    passes += [(kind, 17 + first) for kind, first in LAST_LAYER]
    passes += [("norm", 35), ("project", 36)]
    return [
        PassTotals(
            kind,
            first,
            (i + 1) / 1000,
            CALLS,
            SAMPLED if first >= AFTER_ATTENTION else ROWS,
            POSITIONS if kind == "attention" else 0,
            CONTEXTS if kind == "attention" else 0,
        )
        for i, (kind, first) in enumerate(passes)
    ]


def packed_bytes(program: Program) -> dict[str, int]:
    """A byte for a number, and one for each row."""
    return {name: shape[0] * (shape[1] + 1) for name, shape in program.weights if len(shape) == 2}


@pytest.fixture
def program(tiny: Any) -> Program:
    """Its logits are a product with the embedding."""
    return tiny.program


@pytest.fixture
def works(program: Program) -> list[Work]:
    """In float32: the logits, and in the second layer the product with what attention found."""
    in_f32 = {"token_embd.weight", "blk.1.attn_output.weight"}
    quantized = [name for name in packed_bytes(program) if name not in in_f32]
    return passes_done(program, kind_totals(program), packed_bytes(program), quantized, "f16")


def test_every_pass_by_hand(works: list[Work]) -> None:
    attention = ("attention", 0, 2 * 32 * POSITIONS, 2 * 16 * 2 * CONTEXTS)
    layer = [
        ("norm", 0, 0, 0),
        ("project", QKV * ROWS, 0, (QKV + 64) * CALLS),
        ("rope", 0, 0, 0),
        attention,
        ("project", OUTPUT * ROWS, 0, (OUTPUT + 32) * CALLS),
        ("norm", 0, 0, 0),
        ("gate", GATE_UP * ROWS, 0, (GATE_UP + 96) * CALLS),
        ("project", DOWN * ROWS, 0, (DOWN + 32) * CALLS),
    ]
    second = [
        *layer[:4],
        ("sampled_rows", 0, 0, 0),
        ("sampled_rows", 0, 0, 0),
        ("project", 0, OUTPUT * SAMPLED, (OUTPUT + 32) * CALLS),
        ("norm", 0, 0, 0),
        ("gate", GATE_UP * SAMPLED, 0, (GATE_UP + 96) * CALLS),
        ("project", DOWN * SAMPLED, 0, (DOWN + 32) * CALLS),
    ]
    # The embedding looks rows up: neither arithmetic, nor all of the matrix.
    expected = [(None, ("embed", 0, 0, 0))]
    expected += [(0, one) for one in layer] + [(1, one) for one in second]
    expected += [(None, ("norm", 0, 0, 0))]
    expected += [(None, ("logits", 0, 96 * 32 * SAMPLED, (96 * 32 + 96) * CALLS))]
    assert [
        (work.layer, (work.name, work.int8_madds, work.f32_madds, work.num_bytes)) for work in works
    ] == expected
    assert [work.seconds for work in works] == [(i + 1) / 1000 for i in range(len(works))]
    assert {work.calls for work in works} == {CALLS}


def test_the_passes_add_up_to_the_program(program: Program, works: list[Work]) -> None:
    """Whatever belongs to which pass: every product of the program, once for every row it has."""
    buffers = program.buffers
    shapes = dict(program.weights)
    linears = [op for op in program.ops if isinstance(op, Linear)]
    products = [op.weight for op in linears]
    rows = [SAMPLED if buffers[op.target].rows == "sampled" else ROWS for op in linears]
    assert len(products) == 2 * 7 + 1
    assert rows.count(SAMPLED) == 4 + 1
    madds = sum(
        shapes[name][0] * shapes[name][1] * count
        for name, count in zip(products, rows, strict=True)
    )
    total = _sum(works)
    assert total.int8_madds + total.f32_madds == madds + 2 * 2 * 32 * POSITIONS
    weights = sum(packed_bytes(program)[name] for name in products)
    assert total.num_bytes == weights * CALLS + 2 * 2 * 16 * 2 * CONTEXTS


@pytest.mark.parametrize(
    ("dtype", "head_bytes"), [("f32", 4 * 8), ("f16", 2 * 8), ("int16", 2 * 8 + 4), ("int8", 8 + 4)]
)
def test_the_kv_cache_has_its_bytes(program: Program, dtype: str, head_bytes: int) -> None:
    totals = kind_totals(program)
    works = passes_done(program, totals, packed_bytes(program), (), dtype)
    (attention,) = (work for work in by_name(works) if work.name == "attention")
    assert attention.num_bytes == 2 * 2 * 2 * head_bytes * CONTEXTS
    madds = 2 * 2 * 32 * POSITIONS
    is_int16 = dtype in ("int16", "int8")
    assert attention.int16_madds == (madds if is_int16 else 0)
    assert attention.f32_madds == (0 if is_int16 else madds)
    assert not any(work.int8_madds for work in works)


def test_nothing_done_is_nothing(program: Program) -> None:
    totals = [
        t._replace(seconds=0, calls=0, rows=0, positions=0, contexts=0)
        for t in kind_totals(program)
    ]
    for work in passes_done(program, totals, packed_bytes(program), (), "f32"):
        assert work == Work(work.name, work.layer, 0, 0)
        assert as_dict(work, PEAKS)["share_of_roofline"] is None


def test_an_output_matrix_of_its_own_is_outside_too(tiny_model: Callable[..., Any]) -> None:
    program = tiny_model(tied=False).program
    totals = kind_totals(program)
    works = passes_done(program, totals, packed_bytes(program), ["output.weight"], "f32")
    assert (works[-1].name, works[-1].layer) == ("logits", None)
    assert works[-1].int8_madds == 96 * 32 * SAMPLED


def test_by_name(works: list[Work]) -> None:
    groups = by_name(works)
    assert _sum(groups) == _sum(works)
    assert {work.layer for work in groups} == {None}
    assert Counter(work.name for work in groups) == Counter({work.name for work in works})
    seconds = [work.seconds for work in groups]
    assert seconds == sorted(seconds, reverse=True)
    # Passes 3, 6, 9 of the first layer; of the second, one eight further and two ten further.
    assert groups[0].name == "project"
    assert groups[0].seconds == pytest.approx((3 + 6 + 9 + 11 + 16 + 19) / 1000)
    assert groups[0].calls == 6 * CALLS
    assert groups[0].int8_madds == (2 * QKV + OUTPUT + DOWN) * ROWS + DOWN * SAMPLED
    assert groups[0].f32_madds == OUTPUT * SAMPLED


def test_by_layer(works: list[Work]) -> None:
    groups = by_layer(works)
    assert _sum(groups) == _sum(works)
    assert [work.layer for work in groups] == [0, 1, None]
    assert {work.name for work in groups} == {""}
    assert [work.calls for work in groups] == [8 * CALLS, 10 * CALLS, 3 * CALLS]
    assert groups[0].seconds == pytest.approx(sum(range(2, 10)) / 1000)
    assert groups[2].seconds == pytest.approx((1 + 20 + 21) / 1000)
    assert groups[0].num_bytes == groups[1].num_bytes
    assert groups[1].f32_madds - groups[0].f32_madds == OUTPUT * SAMPLED


def test_passes_without_weights_are_of_the_layer_around_them(program: Program) -> None:
    """Where nothing is fused: turning, the gate's product and sums are passes as well."""
    kinds = {Rope: "rope", SiluMul: "silu_mul", Add: "add", WriteKV: "write_kv"}
    totals = [
        PassTotals(kinds.get(type(op), "project"), i, 0.001, 1, 1, 0, 0)
        for i, op in enumerate(program.ops)
    ]
    works = passes_done(program, totals, packed_bytes(program), (), "f32")
    assert [work.layer for work in works] == [None, *[0] * 16, *[1] * 18, None, None, None]


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (Work("arithmetic in 8 bits", 0, 1.0, 1, 8_000_000, 0, 1_000_000), 2.0),
        (Work("arithmetic of both kinds", 0, 1.0, 1, 8_000_000, 1_000_000, 0), 3.0),
        (Work("memory", 0, 1.0, 1, 4_000_000, 0, 8_000_000), 4.0),
        (Work("arithmetic in 16 bits", 0, 1.0, 1, 0, 0, 0, 6_000_000), 3.0),
        (Work("nothing", 0, 1.0, 1), 0.0),
    ],
)
def test_the_roofline(work: Work, bound: float) -> None:
    assert work.bound(PEAKS) == bound
    assert as_dict(replace(work, seconds=16.0), PEAKS)["share_of_roofline"] == bound / 16


def test_a_pass_and_a_layer_as_json(works: list[Work]) -> None:
    work = Work("gate", 3, 0.5, 2, 1_000_000, 100_000, 600_000)
    expected = {
        "seconds": 0.5,
        "calls": 2,
        "int8_madds": 1_000_000,
        "int16_madds": 0,
        "f32_madds": 100_000,
        "bytes": 600_000,
        "bound_s": 0.35,
        "share_of_roofline": 0.7,
    }
    assert as_dict(work, PEAKS) == {"name": "gate"} | expected
    assert as_dict(replace(work, name=""), PEAKS) == {"layer": 3} | expected
    assert as_dict(replace(work, name="", layer=None), PEAKS) == {"layer": None} | expected


def _sum(works: list[Work]) -> Work:
    """Of everything; to the microsecond, whatever the order."""
    total = Work("", None, 0.0, 0)
    for work in works:
        total += work
    return replace(total, seconds=round(total.seconds, 6))
