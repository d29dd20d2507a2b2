"""The recorder that a model page is run with, once: calls become ops, and shapes are checked."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from looseleaf.core.errors import ConfigError
from looseleaf.program.op import (
    Add,
    BufferId,
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
    output,
    weight_names,
)
from looseleaf.program.program import Buffer, Program, RowKind


class RotaryConfig(Protocol):
    """What `Recorder.rope` needs to know of a model's rotary embedding."""

    @property
    def attention_factor(self) -> float: ...

    def frequencies(self) -> tuple[float, ...]: ...


class HeadsConfig(Protocol):
    """What tracing itself needs to know of a model."""

    @property
    def name(self) -> str: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class TokenIds(NamedTuple):
    """Stands for the step's token ids, which only `Recorder.embed` can read."""


Config = TypeVar("Config", bound=HeadsConfig)
Page = Callable[["Recorder", Config], None]


class Recorder:
    """The `p` of a model page. Every method records one op and returns the buffer it writes.

    Weights are named without their ending: `p.linear(h, "blk.0.attn_q")` reads
    "blk.0.attn_q.weight", and adds "blk.0.attn_q.bias" where the model has one. Raises
    `ConfigError` for a weight that the model lacks and for shapes that do not fit together.
    """

    token_ids = TokenIds()

    def __init__(self, config: HeadsConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._config = config
        self._shapes = shapes
        self._ops: list[Op] = []
        self._buffers: list[Buffer] = []
        self._written_layers: set[int] = set()
        self._vocab_size: int | None = None

    def has(self, weight: str) -> bool:
        """Whether the model has this weight."""
        return f"{weight}.weight" in self._shapes

    def embed(self, weight: str, token_ids: TokenIds) -> Buffer:
        _, columns = self._weight("embed", weight, 2)
        target = self._buffer("tokens", columns)
        return self._record(Embed(target.buffer_id, f"{weight}.weight"), target)

    def linear(self, source: Buffer, weight: str) -> Buffer:
        columns, width = self._weight("linear", weight, 2)
        self._fits("linear", source, width, f"{weight}.weight takes {width}")
        bias = f"{weight}.bias" if f"{weight}.bias" in self._shapes else None
        if bias is not None and self._shapes[bias] != (columns,):
            raise self._error("linear", f"{bias} has shape {self._shapes[bias]}, not ({columns},)")
        target = self._buffer(source.rows, columns)
        op = Linear(target.buffer_id, source.buffer_id, f"{weight}.weight", bias)
        return self._record(op, target)

    def rms_norm(self, source: Buffer, weight: str, eps: float) -> Buffer:
        (width,) = self._weight("rms_norm", weight, 1)
        self._fits("rms_norm", source, width, f"{weight}.weight has {width}")
        target = self._buffer(source.rows, source.columns)
        op = RMSNorm(target.buffer_id, source.buffer_id, f"{weight}.weight", eps)
        return self._record(op, target)

    def rope(self, source: Buffer, config: RotaryConfig) -> Buffer:
        head_dim = self._config.head_dim
        frequencies = config.frequencies()
        self._per_token("rope", source)
        if source.columns % head_dim:
            raise self._error("rope", f"{source.columns} columns are not heads of {head_dim}")
        if 2 * len(frequencies) > head_dim:
            raise self._error(
                "rope", f"{2 * len(frequencies)} rotated channels in heads of {head_dim}"
            )
        target = self._buffer("tokens", source.columns)
        factor = config.attention_factor
        op = Rope(target.buffer_id, source.buffer_id, head_dim, frequencies, factor)
        return self._record(op, target)

    def write_kv(self, layer: int, keys: Buffer, values: Buffer) -> None:
        width = self._config.num_kv_heads * self._config.head_dim
        if not 0 <= layer < self._config.num_layers:
            raise self._error("write_kv", f"layer {layer} of {self._config.num_layers}")
        if layer in self._written_layers:
            raise self._error("write_kv", f"layer {layer} is written twice")
        for buffer in (keys, values):
            self._per_token("write_kv", buffer)
            self._fits("write_kv", buffer, width, f"the KV heads have {width}")
        self._written_layers.add(layer)
        self._ops.append(WriteKV(layer, keys.buffer_id, values.buffer_id))

    def paged_attention(
        self, layer: int, queries: Buffer, *, scale: float, window: int | None = None
    ) -> Buffer:
        width = self._config.num_heads * self._config.head_dim
        self._per_token("paged_attention", queries)
        self._fits("paged_attention", queries, width, f"the heads have {width}")
        if layer not in self._written_layers:
            raise self._error("paged_attention", f"layer {layer} is read before write_kv")
        if window is not None and window < 1:
            raise self._error("paged_attention", f"a window of {window}; it must be at least 1")
        target = self._buffer("tokens", width)
        op = PagedAttention(target.buffer_id, queries.buffer_id, layer, scale, window)
        return self._record(op, target)

    def add(self, left: Buffer, right: Buffer) -> Buffer:
        target = self._like("add", left, right)
        return self._record(Add(target.buffer_id, left.buffer_id, right.buffer_id), target)

    def silu_mul(self, gate: Buffer, up: Buffer) -> Buffer:
        target = self._like("silu_mul", gate, up)
        return self._record(SiluMul(target.buffer_id, gate.buffer_id, up.buffer_id), target)

    def sampled_rows(self, source: Buffer) -> Buffer:
        self._per_token("sampled_rows", source)
        target = self._buffer("sampled", source.columns)
        return self._record(SampledRows(target.buffer_id, source.buffer_id), target)

    def logits(self, source: Buffer) -> None:
        if source.rows != "sampled":
            raise self._error("logits", "takes sampled rows: pass them through sampled_rows first")
        if self._vocab_size is not None:
            raise self._error("logits", "is called twice")
        self._vocab_size = source.columns
        self._ops.append(Logits(source.buffer_id))

    def finish(self) -> Program:
        """The program recorded so far. Raises `ConfigError` if the page left something out."""
        config = self._config
        if self._vocab_size is None:
            raise self._error("logits", "is never called")
        missing = sorted(set(range(config.num_layers)) - self._written_layers)
        if missing:
            raise self._error("write_kv", f"is never called for layers {missing}")
        names = dict.fromkeys(name for op in self._ops for name in weight_names(op))
        return Program(
            name=config.name,
            ops=tuple(self._ops),
            buffers=tuple(self._buffers),
            weights=tuple((name, self._shapes[name]) for name in names),
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=self._vocab_size,
        )

    def _buffer(self, rows: RowKind, columns: int) -> Buffer:
        return Buffer(BufferId(len(self._buffers)), rows, columns)

    def _record(self, op: Op, target: Buffer) -> Buffer:
        assert output(op) == target.buffer_id == len(self._buffers)
        self._ops.append(op)
        self._buffers.append(target)
        return target

    def _weight(self, kind: str, weight: str, num_axes: int) -> tuple[int, ...]:
        name = f"{weight}.weight"
        shape = self._shapes.get(name)
        if shape is None:
            raise self._error(kind, f"needs {name}, which the model does not have")
        if len(shape) != num_axes:
            raise self._error(kind, f"{name} has shape {shape}, but needs {num_axes} axes")
        return shape

    def _like(self, kind: str, left: Buffer, right: Buffer) -> Buffer:
        if left.rows != right.rows or left.columns != right.columns:
            raise self._error(
                kind,
                f"[{left.rows}, {left.columns}] and [{right.rows}, {right.columns}] do not match",
            )
        return self._buffer(left.rows, left.columns)

    def _fits(self, kind: str, buffer: Buffer, width: int, what: str) -> None:
        if buffer.columns != width:
            raise self._error(kind, f"its input has {buffer.columns} columns, but {what}")

    def _per_token(self, kind: str, buffer: Buffer) -> None:
        if buffer.rows != "tokens":
            raise self._error(kind, "takes a row per token, but its input has only sampled rows")

    def _error(self, kind: str, what: str) -> ConfigError:
        return ConfigError(
            f"{self._config.name}: op {len(self._ops)} ({kind}): {what}; "
            "the weights and the model's settings do not belong together"
        )


def trace(page: Page[Config], config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Program:
    """Run a model page once and return what it recorded.

    `shapes` maps full weight names ("blk.0.attn_q.weight", "blk.0.attn_q.bias") to shapes, (out,
    in) for matrices. A page that can do without a weight asks `p.has`.
    """
    recorder = Recorder(config, shapes)
    page(recorder, config)
    return recorder.finish()
