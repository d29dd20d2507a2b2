"""How long a step takes: what every cost model offers, and the roofline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from looseleaf.core.errors import ConfigError
from looseleaf.planner.hardware import Hardware


class StepPart(NamedTuple):
    """One sequence of a step: tokens that are computed, and those before them whose KV is stored
    already."""

    num_new_tokens: int
    context_length: int


class StepSummary(NamedTuple):
    """What of a step's sequences measured times depend on.

    `num_rows` are rows of logits: one for each sequence, unless those that draw nothing are left
    out. Sequences that decode compute one token each, over `decode_context` tokens together, the
    longest over `longest_context`, their own included. All others are `num_chunks` chunks of
    prompts, of `chunk` tokens together, with `pairs` of a query and a key that it reads.
    `shared_context` of the `decode_context` is read by another sequence too, and once for both; 0
    if nobody looked. `idle` seconds before it nothing ran, and caches were as `cold` as
    `cooling.Caches` says; both 0 if nobody looked.
    """

    num_rows: int
    num_decodes: int
    decode_context: int
    longest_context: int
    chunk: int
    pairs: int
    num_chunks: int = 0
    shared_context: int = 0
    idle: float = 0.0
    cold: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.chunk


def summarize(parts: Sequence[StepPart]) -> StepSummary:
    chunk = pairs = num_decodes = context = longest = 0
    for num_new, stored in parts:
        if num_new == 1:
            num_decodes += 1
            context += stored + 1
            longest = max(longest, stored + 1)
        else:
            chunk += num_new
            pairs += num_new * stored + num_new * (num_new + 1) // 2
    num_chunks = len(parts) - num_decodes
    return StepSummary(len(parts), num_decodes, context, longest, chunk, pairs, num_chunks)


class Work(Protocol):
    """What is counted of a step, as `executors.cost.StepCost` has it."""

    @property
    def linear_flops(self) -> int: ...
    @property
    def attention_flops(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_read_bytes(self) -> int: ...
    @property
    def kv_written_bytes(self) -> int: ...
    @property
    def num_reductions(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...


REDUCTION_SECONDS = 20e-6
"""Of a sum over devices, besides its bytes: an assumption, as a roofline's efficiencies are."""


class CostModel(Protocol):
    """`name` and `known_error` are printed with whatever is predicted by it."""

    @property
    def name(self) -> str: ...
    @property
    def known_error(self) -> str: ...
    def seconds(self, parts: Sequence[StepPart]) -> float:
        """Of one step over these sequences; 0 for none."""
        ...


LEAST_EFFICIENCY = 1e-6

_MOST_OVERHEAD = 3600.0


def check_overhead(seconds: float) -> None:
    """Raises ConfigError for a `step_overhead` that cannot be."""
    if not 0 <= seconds <= _MOST_OVERHEAD:
        raise ConfigError(
            f"step_overhead is {seconds:g} s, but it must be at least 0 and at most "
            f"{_MOST_OVERHEAD:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Products and attention each take the longer of computing and reading; then come the sums over
    devices, and what each step takes besides (`step_overhead`, seconds).

    `peak_flops` and `bandwidth` are a device's, reached to the shares `compute_efficiency` and
    `bandwidth_efficiency`. `count` tells the work of a step, on each device. `peer_bandwidth` is
    what one sends others, in bytes a second; with None, sums over devices take no time.
    """

    name: str
    count: Callable[[Sequence[StepPart]], Work]
    peak_flops: float
    bandwidth: float
    compute_efficiency: float = 0.7
    bandwidth_efficiency: float = 0.85
    step_overhead: float = 0.0
    peer_bandwidth: float | None = None
    known_error: str = "unknown: its efficiencies are assumptions until they are calibrated"

    def __post_init__(self) -> None:
        for name in ("compute_efficiency", "bandwidth_efficiency"):
            if not LEAST_EFFICIENCY <= getattr(self, name) <= 1.2:  # above 1: boosted clocks
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}, but it must be at least "
                    f"{LEAST_EFFICIENCY:g} and at most 1.2"
                )
        for name in ("peak_flops", "bandwidth"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name):g}, but it must be above 0")
        check_overhead(self.step_overhead)

    def seconds(self, parts: Sequence[StepPart]) -> float:
        if not parts:
            return 0.0
        return self.seconds_of(self.count(parts))

    def seconds_of(self, work: Work) -> float:
        """Of a step with this work, which is not none."""
        flops = self.peak_flops * self.compute_efficiency
        bandwidth = self.bandwidth * self.bandwidth_efficiency
        kv_bytes = work.kv_read_bytes + work.kv_written_bytes
        linear = max(work.linear_flops / flops, work.weight_bytes / bandwidth)
        attention = max(work.attention_flops / flops, kv_bytes / bandwidth)
        together = 0.0
        if self.peer_bandwidth is not None:
            together = work.num_reductions * REDUCTION_SECONDS
            together += work.sent_bytes / self.peer_bandwidth
        return linear + attention + together + self.step_overhead


def roofline(
    hardware: Hardware,
    count: Callable[[Sequence[StepPart]], Work],
    weights_dtype: str = "bf16",
    **settings: float,
) -> Roofline:
    """Of a device, for weights of this dtype; `settings` are efficiencies and overhead."""
    return Roofline(
        name=f"roofline of {hardware.title}",
        count=count,
        peak_flops=hardware.peak_flops(weights_dtype),
        bandwidth=hardware.bandwidth,
        peer_bandwidth=hardware.peer_bandwidth,
        **settings,  # type: ignore[arg-type]
    )
