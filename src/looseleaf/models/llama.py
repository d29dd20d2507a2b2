"""Llama and what shares its shape: pre-norm, grouped queries, rotary positions, SwiGLU."""

import numpy as np
from numpy.typing import NDArray

from looseleaf.models.config import ModelConfig
from looseleaf.program.trace import Recorder
from looseleaf.weights.gguf_llama import undo_rope_permutation


def page(p: Recorder, c: ModelConfig) -> None:
    x = p.embed("token_embd", p.token_ids)
    for i in range(c.num_layers):
        h = p.rms_norm(x, f"blk.{i}.attn_norm", c.norm_eps)
        q, k, v = (p.linear(h, f"blk.{i}.attn_{n}") for n in "qkv")
        q, k = p.rope(q, c.rope), p.rope(k, c.rope)
        p.write_kv(i, k, v)
        a = p.paged_attention(i, q, scale=c.attention_scale, window=c.window(i))
        if i == c.num_layers - 1:  # the keys and values of all tokens are stored
            x, a = p.sampled_rows(x), p.sampled_rows(a)
        x = p.add(x, p.linear(a, f"blk.{i}.attn_output"))
        h = p.rms_norm(x, f"blk.{i}.ffn_norm", c.norm_eps)
        g = p.silu_mul(p.linear(h, f"blk.{i}.ffn_gate"), p.linear(h, f"blk.{i}.ffn_up"))
        x = p.add(x, p.linear(g, f"blk.{i}.ffn_down"))
    x = p.rms_norm(x, "output_norm", c.norm_eps)
    p.logits(p.linear(x, "output" if p.has("output") else "token_embd"))


def from_gguf(name: str, weight: NDArray[np.generic], c: ModelConfig) -> NDArray[np.generic]:
    """A weight as the page expects it: GGUF interleaves the rows of queries and keys.

    Only rows move, so rows that are still quantized work too. Where fewer channels than
    `head_dim` are rotated, they are a head's first rows.
    """
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    heads = {"attn_q": c.num_heads, "attn_k": c.num_kv_heads}.get(part)
    if heads is None:
        return weight
    rotated = c.rope.rotary_dim
    if rotated == c.head_dim:
        return undo_rope_permutation(weight, heads)
    by_head = weight.reshape(heads, c.head_dim, *weight.shape[1:]).copy()
    rows = by_head[:, :rotated].reshape(heads * rotated, *weight.shape[1:])
    by_head[:, :rotated] = undo_rope_permutation(rows, heads).reshape(by_head[:, :rotated].shape)
    return by_head.reshape(weight.shape)
