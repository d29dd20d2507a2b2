"""The op set: everything that a model page can ask of an executor.

An op is plain data: frozen, comparable, made of buffer numbers, weight names and numbers. Buffers
are float32 matrices with one row per token of the step ("tokens") or per row of logits wanted
("sampled"); the shapes below write T and S for the two. Each op writes a buffer that no other op
writes (`target`), except `WriteKV`, which writes the KV cache. What a step brings along (token
ids, positions, block tables, which rows are wanted) is not in the op: it belongs to the batch.

Weight names are GGUF's in full ("blk.0.attn_q.weight"), and weights have shape (out, in).
"""

from dataclasses import dataclass, field
from typing import ClassVar, NewType

BufferId = NewType("BufferId", int)


@dataclass(frozen=True, slots=True)
class Embed:
    """target (T, hidden) = rows `token_ids` (T, int) of weight (vocab, hidden)."""

    kind: ClassVar[str] = "embed"
    target: BufferId
    weight: str


@dataclass(frozen=True, slots=True)
class Linear:
    """target (R, out) = source (R, in) @ weight(out, in).T + bias (out,), for either row kind."""

    kind: ClassVar[str] = "linear"
    target: BufferId
    source: BufferId
    weight: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """target = source / sqrt(mean(source ** 2) + eps) * weight, along each row (R, columns).

    Zhang and Sennrich, 2019. The weight (columns,) is used as it is stored.
    """

    kind: ClassVar[str] = "rms_norm"
    target: BufferId
    source: BufferId
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """target = source (T, heads * head_dim) with each head rotated by its token's position.

    Half-split form: with r = 2 * len(frequencies) channels rotated, the channels i and i + r / 2
    of a head are a pair, turned by the angle position * frequencies[i] and multiplied by `scale`;
    channels from r on are copied. Su et al., 2021.
    """

    kind: ClassVar[str] = "rope"
    target: BufferId
    source: BufferId
    head_dim: int
    frequencies: tuple[float, ...] = field(repr=False)
    """Radians per position, one per pair: model scaling is already in them."""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class WriteKV:
    """Store keys and values (T, kv_heads * head_dim) of `layer` in each token's slot."""

    kind: ClassVar[str] = "write_kv"
    layer: int
    keys: BufferId
    values: BufferId


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """target (T, heads * head_dim) = softmax(queries @ keys.T * scale) @ values.

    Keys and values are those of `layer`, read through the sequence's block table: of positions up
    to and including the query's own, and of these the last `window` (own included) if it is set.
    Query head h reads KV head h // (heads / kv_heads).
    """

    kind: ClassVar[str] = "paged_attention"
    target: BufferId
    queries: BufferId
    layer: int
    scale: float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """target = left + right, all (R, columns)."""

    kind: ClassVar[str] = "add"
    target: BufferId
    left: BufferId
    right: BufferId


@dataclass(frozen=True, slots=True)
class SiluMul:
    """target = gate * sigmoid(gate) * up, all (R, columns). Shazeer, 2020 (SwiGLU)."""

    kind: ClassVar[str] = "silu_mul"
    target: BufferId
    gate: BufferId
    up: BufferId


@dataclass(frozen=True, slots=True)
class SampledRows:
    """target (S, columns) = those rows of source (T, columns) whose logits are wanted, in order."""

    kind: ClassVar[str] = "sampled_rows"
    target: BufferId
    source: BufferId


@dataclass(frozen=True, slots=True)
class Logits:
    """The result of the program: source (S, vocab)."""

    kind: ClassVar[str] = "logits"
    source: BufferId


Op = (
    Embed
    | Linear
    | RMSNorm
    | Rope
    | WriteKV
    | PagedAttention
    | Add
    | SiluMul
    | SampledRows
    | Logits
)


def inputs(op: Op) -> tuple[BufferId, ...]:
    """The buffers that an op reads."""
    match op:
        case Embed():
            return ()
        case WriteKV():
            return (op.keys, op.values)
        case PagedAttention():
            return (op.queries,)
        case Add():
            return (op.left, op.right)
        case SiluMul():
            return (op.gate, op.up)
        case _:
            return (op.source,)


def output(op: Op) -> BufferId | None:
    """The buffer that an op writes, if it writes one."""
    return None if isinstance(op, WriteKV | Logits) else op.target


def weight_names(op: Op) -> tuple[str, ...]:
    """The weights that an op reads."""
    match op:
        case Linear(weight=weight, bias=str(bias)):
            return (weight, bias)
        case Embed() | Linear() | RMSNorm():
            return (op.weight,)
        case _:
            return ()
