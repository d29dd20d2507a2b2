"""A program as the C++ runtime takes it: numbers for kinds, buffers, weights and tables."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.errors import ConfigError
from looseleaf.program.op import (
    Add,
    Embed,
    Linear,
    Logits,
    Op,
    PagedAttention,
    RMSNorm,
    Rope,
    SampledRows,
    SiluMul,
    WriteKV,
)
from looseleaf.program.program import Program

# The order of OpKind in native/runtime.h.
_KINDS: dict[type[Op], int] = {
    kind: i
    for i, kind in enumerate(
        (
            Embed,
            Linear,
            RMSNorm,
            Rope,
            WriteKV,
            PagedAttention,
            Add,
            SiluMul,
            SampledRows,
            Logits,
        )
    )
}

_STRIDE = 64

OpTuple = tuple[int, int, int, int, int, int, int, int, float]
RopeTable = tuple[int, NDArray[np.float32], NDArray[np.float32]]


class CompiledProgram(NamedTuple):
    """`ops` are (kind, target, first, second, weight, bias, layer, window, number). `matrices` and
    `vectors` are the names of the weights that their indices mean; `ropes` are (channels rotated,
    cosines, sines), with a row per position."""

    ops: list[OpTuple]
    matrices: list[str]
    vectors: list[str]
    ropes: list[RopeTable]


def compile_program(program: Program, max_positions: int) -> CompiledProgram:
    """Raises ConfigError, by name, for an op that the runtime lacks."""
    matrices: dict[str, int] = {}
    vectors: dict[str, int] = {}
    tables: dict[tuple[tuple[float, ...], float], int] = {}

    def index(names: dict[str, int], name: str | None) -> int:
        return -1 if name is None else names.setdefault(name, len(names))

    ops: list[OpTuple] = []
    for op in program.ops:
        kind = _KINDS.get(type(op))
        if kind is None:
            raise ConfigError(f"{program.name}: the native executor has no op {op.kind!r}")
        none = (-1, -1, -1, -1, -1, 0, 0, 0.0)
        fields: tuple[int, int, int, int, int, int, int, float]
        match op:
            case Embed():
                fields = (op.target, -1, -1, index(matrices, op.weight), *none[4:])
            case Linear():
                weight, bias = index(matrices, op.weight), index(vectors, op.bias)
                fields = (op.target, op.source, -1, weight, bias, 0, 0, 0.0)
            case RMSNorm():
                weight = index(vectors, op.weight)
                fields = (op.target, op.source, -1, weight, -1, 0, 0, op.eps)
            case Rope():
                table = tables.setdefault((op.frequencies, op.scale), len(tables))
                fields = (op.target, op.source, -1, table, *none[4:])
            case WriteKV():
                fields = (-1, op.keys, op.values, -1, -1, op.layer, 0, 0.0)
            case PagedAttention():
                window = op.window or 0
                fields = (op.target, op.queries, -1, -1, -1, op.layer, window, op.scale)
            case Add():
                fields = (op.target, op.left, op.right, *none[3:])
            case SiluMul():
                fields = (op.target, op.gate, op.up, *none[3:])
            case SampledRows():
                fields = (op.target, op.source, *none[2:])
            case Logits():
                fields = (-1, op.source, *none[2:])
        ops.append((kind, *fields))
    ropes = [rope_table(*key, max_positions) for key in tables]
    return CompiledProgram(ops, list(matrices), list(vectors), ropes)


def rope_table(frequencies: tuple[float, ...], scale: float, max_positions: int) -> RopeTable:
    """(positions, pairs) of cosines and of sines, in complex128 and then rounded once.

    The turn of a position is that of the last multiple of `_STRIDE`, times that of the rest: a
    multiplication instead of two trigonometric functions.
    """
    frequency = np.array(frequencies)
    near = np.arange(_STRIDE)[:, None] * frequency
    far = np.arange(0, max_positions, _STRIDE)[:, None] * frequency
    turns = scale * np.exp(1j * far)[:, None] * np.exp(1j * near)
    table = turns.reshape(-1, len(frequencies))[:max_positions]
    cosines, sines = table.real.astype(np.float32), table.imag.astype(np.float32)
    return 2 * len(frequencies), cosines, sines
