"""A traced model: a flat list of ops over buffers. The number of tokens is the only free size."""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.program.op import BufferId, Op, inputs, output

RowKind = Literal["tokens", "sampled"]

_READS = frozenset({"source", "left", "right", "gate", "up", "keys", "values", "queries"})


class Buffer(NamedTuple):
    """A float32 matrix: a row per token, or per row of logits wanted; `columns` is fixed."""

    buffer_id: BufferId
    rows: RowKind
    columns: int


@dataclass(frozen=True, slots=True)
class Program:
    """What an executor compiles. Each buffer is written by one op, before any op reads it.

    `buffers[i]` describes the buffer with id i. `weights` are the names and shapes of all weights
    that the ops use.
    """

    name: str
    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def num_parameters(self) -> int:
        total = 0
        for _, shape in self.weights:
            size = 1
            for n in shape:
                size *= n
            total += size
        return total

    def last_uses(self) -> tuple[tuple[BufferId, ...], ...]:
        """For each op, the buffers that nobody reads after it."""
        seen: set[BufferId] = set()
        result: list[tuple[BufferId, ...]] = []
        for op in reversed(self.ops):
            target = output(op)
            used = inputs(op) if target is None else (*inputs(op), target)
            result.append(tuple(dict.fromkeys(b for b in used if b not in seen)))
            seen.update(used)
        return tuple(reversed(result))

    def __str__(self) -> str:
        head = (
            f"{self.name}: {len(self.ops)} ops, {self.num_layers} layers, {self.num_heads} heads "
            f"({self.num_kv_heads} KV) of {self.head_dim}, vocabulary {self.vocab_size}, "
            f"{self.num_parameters:,} parameters"
        )
        return "\n".join([head, *(f"{i:4}  {self._line(op)}" for i, op in enumerate(self.ops))])

    def _line(self, op: Op) -> str:
        """Such as `b3[tokens, 64] = linear(b2, blk.0.attn_q.weight)`."""
        words = []
        for field in fields(op):
            value = getattr(op, field.name)
            if field.name == "target" or value is None:
                continue
            if field.name == "frequencies":
                words.append(f"rotary_dim={2 * len(value)}")
            elif isinstance(value, str):
                words.append(value)
            elif field.name in _READS:
                words.append(f"b{value}")
            else:
                words.append(f"{field.name}={value:.6g}")
        call = f"{op.kind}({', '.join(words)})"
        target = output(op)
        if target is None:
            return call
        buffer = self.buffers[target]
        return f"b{target}[{buffer.rows}, {buffer.columns}] = {call}"


class RawWeight(NamedTuple):
    """A weight as its file has it, for executors that compute on packed weights: `source` is its
    GGUF type, such as "Q4_1" or "F32", `data` its rows of quantized blocks (uint8) or floats."""

    source: str
    shape: tuple[int, ...]
    data: NDArray[np.generic]
