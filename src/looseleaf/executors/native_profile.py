"""Where the time of the native executor went, and how far that is from what the machine allows.

The roofline (Williams et al., 2009): work takes at least its multiply-adds over the fastest rate of
multiply-adds, and at least its bytes over the speed of memory. `bound_s` is the larger of the two;
its share of the time measured says how much a better kernel could still win.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from looseleaf.executors.kv_dtype import INTEGERS, kv_row_bytes
from looseleaf.program.op import Linear, PagedAttention, weight_names
from looseleaf.program.program import Program


class Peaks(NamedTuple):
    """Per second: multiply-adds in 8 bits and in float32, and bytes read from memory."""

    int8_madds: float
    f32_madds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass did, summed over its calls. `layer` is None outside the layers.

    `num_bytes` is what has to be read at least once a call: the weights, and every sequence's keys
    and values. Activations are left out: they stay in the caches.
    """

    name: str
    layer: int | None
    seconds: float
    calls: int
    int8_madds: int = 0
    f32_madds: int = 0
    num_bytes: int = 0
    int16_madds: int = 0

    def bound(self, peaks: Peaks) -> float:
        """Seconds that this takes at least."""
        # A register holds half as many numbers of 16 bits as of 8.
        arithmetic = (
            self.int8_madds / peaks.int8_madds
            + self.int16_madds / (peaks.int8_madds / 2)
            + self.f32_madds / peaks.f32_madds
        )
        return max(arithmetic, self.num_bytes / peaks.bytes)

    def __add__(self, other: "Work") -> "Work":
        return replace(
            self,
            seconds=self.seconds + other.seconds,
            calls=self.calls + other.calls,
            int8_madds=self.int8_madds + other.int8_madds,
            int16_madds=self.int16_madds + other.int16_madds,
            f32_madds=self.f32_madds + other.f32_madds,
            num_bytes=self.num_bytes + other.num_bytes,
        )


class PassTotals(NamedTuple):
    """As `_native.Runtime.profile` has them."""

    kind: str
    first_op: int
    seconds: float
    calls: int
    rows: int
    positions: int
    contexts: int


def passes_done(
    program: Program,
    totals: Sequence[PassTotals],
    weight_bytes: Mapping[str, int],
    quantized: Iterable[str],
    kv_dtype: str,
) -> list[Work]:
    """What every pass did, in order. `weight_bytes` are those of the packed weights by name;
    products with those in `quantized` are in 8 bits."""
    shapes = dict(program.weights)
    in_8_bits = set(quantized)
    ends = [*(t.first_op for t in totals[1:]), len(program.ops)]
    layer: int | None = None
    result = []
    for total, end in zip(totals, ends, strict=True):
        ops = program.ops[total.first_op : end]
        madds = {"int8": 0, "int16": 0, "f32": 0}
        num_bytes = 0
        names = [name for op in ops for name in weight_names(op)]
        if names:  # passes without weights belong with those before them
            layer = _layer(names[0])
        for op in ops:
            match op:
                case Linear():
                    n, k = shapes[op.weight]
                    madds["int8" if op.weight in in_8_bits else "f32"] += n * k * total.rows
                    num_bytes += weight_bytes[op.weight] * total.calls
                case PagedAttention():
                    columns = program.num_heads * program.head_dim
                    kind = "int16" if kv_dtype in INTEGERS else "f32"
                    madds[kind] += 2 * columns * total.positions
                    row_bytes = program.num_kv_heads * kv_row_bytes(kv_dtype, program.head_dim)
                    num_bytes += 2 * row_bytes * total.contexts
        name = "logits" if total.kind == "project" and layer is None else total.kind
        result.append(
            Work(
                name,
                layer,
                total.seconds,
                total.calls,
                madds["int8"],
                madds["f32"],
                num_bytes,
                madds["int16"],
            )
        )
    return result


def by_name(works: Iterable[Work]) -> list[Work]:
    """Summed over layers, the longest first."""
    sums: dict[str, Work] = {}
    for work in works:
        total = replace(work, layer=None)
        sums[work.name] = sums[work.name] + total if work.name in sums else total
    return sorted(sums.values(), key=lambda work: -work.seconds)


def by_layer(works: Iterable[Work]) -> list[Work]:
    """One for each layer in order, then one, without a layer, for what is outside of them."""
    sums: dict[int | None, Work] = {}
    for work in works:
        total = replace(work, name="")
        sums[work.layer] = sums[work.layer] + total if work.layer in sums else total
    return sorted(sums.values(), key=lambda work: (work.layer is None, work.layer))


def as_dict(work: Work, peaks: Peaks) -> dict[str, Any]:
    bound = work.bound(peaks)
    return {
        **({"name": work.name} if work.name else {"layer": work.layer}),
        "seconds": work.seconds,
        "calls": work.calls,
        "int8_madds": work.int8_madds,
        "int16_madds": work.int16_madds,
        "f32_madds": work.f32_madds,
        "bytes": work.num_bytes,
        "bound_s": bound,
        "share_of_roofline": bound / work.seconds if work.seconds else None,
    }


def _layer(weight: str) -> int | None:
    """The layer that a GGUF weight name belongs to: 3 for "blk.3.attn_q.weight"."""
    prefix, _, rest = weight.partition(".")
    return int(rest.partition(".")[0]) if prefix == "blk" else None
