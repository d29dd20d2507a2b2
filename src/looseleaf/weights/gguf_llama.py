"""The row order that GGUF gives a llama model's query and key projections."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from looseleaf.weights.errors import GGUFError

Scalar = TypeVar("Scalar", bound=np.generic)


def undo_rope_permutation(weight: NDArray[Scalar], num_heads: int) -> NDArray[Scalar]:
    """Put the rows of `attn_q` / `attn_k` back so that RoPE rotates half-split pairs (NeoX form).

    Checkpoints rotate row `i` of a head together with row `i + head_dim / 2`. For architecture
    `llama`, GGUF files hold the rows reordered so that the two are neighbours instead:

        checkpoint  a0 a1 a2 b0 b1 b2      (a_i, b_i) is a rotated pair
        GGUF        a0 b0 a1 b1 a2 b2

    `weight` is `(out, ...)` and only its rows move, so still quantized rows `(out, bytes per row)`
    and biases `(out,)` work too. `num_heads` is the number of heads in this tensor: with grouped
    queries, the number of KV heads for `attn_k`. Returns a new array of the same shape and dtype.
    Raises `GGUFError` when the rows do not divide into that many heads of even size.
    """
    out = weight.shape[0]
    if num_heads < 1 or out % (2 * num_heads):
        raise GGUFError(
            f"{out} rows do not divide into {num_heads} heads of an even size: "
            "check attention.head_count and attention.head_count_kv in the file"
        )
    neighbours = weight.reshape(num_heads, out // num_heads // 2, 2, *weight.shape[1:])
    return neighbours.swapaxes(1, 2).reshape(weight.shape).copy()
