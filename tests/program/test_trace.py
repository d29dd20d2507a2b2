"""Tracing a page: what it records, what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.models.rope import RopeConfig
from looseleaf.program.op import Linear, inputs, output, weight_names
from looseleaf.program.trace import trace

CONFIG = SimpleNamespace(
    name="toy", num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, rope=RopeConfig(100.0, 4)
)
SHAPES = {
    "token_embd.weight": (50, 8),
    "norm.weight": (8,),
    "q.weight": (8, 8),
    "q.bias": (8,),
    "k.weight": (4, 8),
    "v.weight": (4, 8),
    "wide.weight": (12, 8),
    "cube.weight": (2, 2, 2),
}


def toy(p: Any, c: Any) -> None:
    x = p.embed("token_embd", p.token_ids)
    h = p.rms_norm(x, "norm", 1e-6)
    q, k, v = (p.linear(h, n) for n in "qkv")
    p.write_kv(0, p.rope(k, c.rope), v)
    x = p.add(x, p.paged_attention(0, p.rope(q, c.rope), scale=0.5, window=7))
    p.logits(p.linear(p.sampled_rows(p.silu_mul(x, x)), "token_embd"))


def test_a_page_becomes_a_flat_list_that_can_be_read() -> None:
    program = trace(toy, CONFIG, SHAPES)  # type: ignore[type-var]
    assert str(program).splitlines() == [
        "toy: 14 ops, 1 layers, 2 heads (1 KV) of 4, vocabulary 50, 544 parameters",
        "   0  b0[tokens, 8] = embed(token_embd.weight)",
        "   1  b1[tokens, 8] = rms_norm(b0, norm.weight, eps=1e-06)",
        "   2  b2[tokens, 8] = linear(b1, q.weight, q.bias)",
        "   3  b3[tokens, 4] = linear(b1, k.weight)",
        "   4  b4[tokens, 4] = linear(b1, v.weight)",
        "   5  b5[tokens, 4] = rope(b3, head_dim=4, rotary_dim=4, scale=1)",
        "   6  write_kv(layer=0, b5, b4)",
        "   7  b6[tokens, 8] = rope(b2, head_dim=4, rotary_dim=4, scale=1)",
        "   8  b7[tokens, 8] = paged_attention(b6, layer=0, scale=0.5, window=7)",
        "   9  b8[tokens, 8] = add(b0, b7)",
        "  10  b9[tokens, 8] = silu_mul(b8, b8)",
        "  11  b10[sampled, 8] = sampled_rows(b9)",
        "  12  b11[sampled, 50] = linear(b10, token_embd.weight)",
        "  13  logits(b11)",
    ]
    assert program.vocab_size == 50
    assert dict(program.weights) == {
        n: SHAPES[n] for n in SHAPES if n not in ("wide.weight", "cube.weight")
    }


def test_programs_compare_and_hash_by_content() -> None:
    one, two = trace(toy, CONFIG, SHAPES), trace(toy, CONFIG, SHAPES)  # type: ignore[type-var]
    assert one == two
    assert hash(one) == hash(two)


def test_every_buffer_is_written_before_it_is_read_and_has_one_last_use() -> None:
    program = trace(toy, CONFIG, SHAPES)  # type: ignore[type-var]
    written: set[int] = set()
    for op in program.ops:
        assert set(inputs(op)) <= written
        target = output(op)
        if target is not None:
            assert target not in written
            written.add(target)
    released = [b for buffers in program.last_uses() for b in buffers]
    assert sorted(released) == list(range(len(program.buffers)))
    for i, buffers in enumerate(program.last_uses()):
        for later in program.ops[i + 1 :]:
            assert not set(buffers) & set(inputs(later))


def test_a_bias_is_picked_up_where_there_is_one() -> None:
    program = trace(toy, CONFIG, SHAPES)  # type: ignore[type-var]
    linears = [op for op in program.ops if isinstance(op, Linear)]
    assert [op.bias for op in linears] == ["q.bias", None, None, None]
    assert weight_names(linears[0]) == ("q.weight", "q.bias")


def embedded(p: Any) -> Any:
    return p.embed("token_embd", p.token_ids)


MISTAKES: list[tuple[Any, str]] = [
    (lambda p, c: p.linear(embedded(p), "nowhere"), r"needs nowhere\.weight"),
    (lambda p, c: p.linear(embedded(p), "norm"), r"norm\.weight has shape \(8,\), but needs 2"),
    (lambda p, c: p.linear(p.linear(embedded(p), "k"), "q"), "has 4 columns, but q.weight takes 8"),
    (lambda p, c: p.rms_norm(p.linear(embedded(p), "k"), "norm", 1e-5), "has 4 columns"),
    (lambda p, c: p.add(embedded(p), p.linear(embedded(p), "k")), r"\[tokens, 8\] and \[tokens, 4"),
    (lambda p, c: p.add(embedded(p), p.sampled_rows(embedded(p))), r"\[sampled, 8\] do not match"),
    (lambda p, c: p.rope(p.sampled_rows(embedded(p)), c.rope), "only sampled rows"),
    (lambda p, c: p.rope(embedded(p), RopeConfig(10.0, 6)), "6 rotated channels in heads of 4"),
    (lambda p, c: p.write_kv(1, embedded(p), embedded(p)), "layer 1 of 1"),
    (lambda p, c: p.write_kv(0, embedded(p), embedded(p)), "the KV heads have 4"),
    (lambda p, c: p.paged_attention(0, embedded(p), scale=1.0), "read before write_kv"),
    (lambda p, c: p.logits(embedded(p)), "pass them through sampled_rows"),
    (lambda p, c: p.logits(p.sampled_rows(embedded(p))), "never called for layers"),
    (lambda p, c: toy(p, c) or toy(p, c), "layer 0 is written twice"),
    (lambda p, c: toy(p, c) or p.logits(p.sampled_rows(embedded(p))), "is called twice"),
    (lambda p, c: None, "is never called"),
]


@pytest.mark.parametrize(("page", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_a_mistake_is_refused_by_name(page: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        trace(page, CONFIG, SHAPES)
    assert str(caught.value).startswith("toy: op ")


def test_a_bias_of_another_length_and_a_bad_window_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"q\.bias has shape \(3,\)"):
        trace(toy, CONFIG, SHAPES | {"q.bias": (3,)})  # type: ignore[type-var]

    def page(p: Any, c: Any) -> None:
        x = embedded(p)
        p.write_kv(0, p.linear(x, "k"), p.linear(x, "v"))
        p.paged_attention(0, x, scale=1.0, window=0)

    with pytest.raises(ConfigError, match="a window of 0"):
        trace(page, CONFIG, SHAPES)
