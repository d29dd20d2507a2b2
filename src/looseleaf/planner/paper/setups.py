"""The paper's machines, models and systems, as settings of this engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from looseleaf.core.request import RequestId
from looseleaf.core.step import Step
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.cost_model import Roofline, Work
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.models import load_shape
from looseleaf.planner.paper.published import KERNEL_OVERHEAD, SETUPS, SYSTEMS
from looseleaf.planner.paper.workloads import CONTEXT
from looseleaf.planner.shape_work import ShapeCounter
from looseleaf.planner.shapes import ModelShape
from looseleaf.planner.step_times import ShapeTimes, StepTimes

BLOCK_SIZE = 16
MAX_NUM_SEQS = 1024
"""Never reached, so that memory alone limits what runs at once. vLLM's default of those days was
256, which beams would reach."""

MAX_NUM_BATCHED_TOKENS = 2560
"""vLLM's default of those days."""

DTYPE = "f16"


class Overhead(NamedTuple):
    """What a step takes beyond the roofline, in seconds: at all, and for each sequence in it."""

    step: float = 0.0
    sequence: float = 0.0


NO_OVERHEAD = Overhead()


class System(NamedTuple):
    name: str
    allocator: str

    @property
    def paged(self) -> bool:
        return self.allocator == "paged"


MAX, POW2, ORACLE, VLLM = (
    System(name, allocator)
    for name, allocator in zip(
        SYSTEMS, ("contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged"), strict=True
    )
)
ALL = (MAX, POW2, ORACLE, VLLM)


def engine_settings(
    system: System, block_size: int = BLOCK_SIZE, prefix_caching: bool = False
) -> EngineSettings:
    """As the paper has it: nobody keeps room for requests to grow, prompts are computed whole, and
    nothing is found again unless that is asked for."""
    return EngineSettings(
        block_size=block_size,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        long_prefill_token_threshold=MAX_NUM_BATCHED_TOKENS,
        admission_headroom=0,
        kv_allocator=system.allocator,
        enable_prefix_caching=prefix_caching and system.paged,
    )


@dataclass(frozen=True, kw_only=True)
class PagedRoofline(Roofline):
    """A roofline whose attention takes `overhead` longer for looking up blocks."""

    overhead: float = 0.0

    def seconds_of(self, work: Work) -> float:
        whole = super().seconds_of(work)
        flops = self.peak_flops * self.compute_efficiency
        num_bytes = work.kv_read_bytes + work.kv_written_bytes
        attention = max(
            work.attention_flops / flops,
            num_bytes / (self.bandwidth * self.bandwidth_efficiency),
        )
        return whole + self.overhead * attention


def kernel_overhead(block_size: int) -> float:
    """The middle of what the paper measured at blocks of 16; taken to be a cost of each block, so
    that smaller ones cost more."""
    return sum(KERNEL_OVERHEAD) / 2 * BLOCK_SIZE / block_size


class OverheadTimes:
    """Implements `StepTimes`: those of others, and an overhead."""

    def __init__(self, times: StepTimes, overhead: Overhead) -> None:
        self._times = times
        self._overhead = overhead

    def seconds(self, step: Step) -> float:
        return self._times.seconds(step) + self._more(len(step.sequences))

    def decoding(
        self, num_stored: Sequence[int], names: Sequence[RequestId] = ()
    ) -> Iterator[float]:
        more = self._more(len(num_stored))
        return (seconds + more for seconds in self._times.decoding(num_stored, names))

    def _more(self, num_sequences: int) -> float:
        return self._overhead.step + num_sequences * self._overhead.sequence


@dataclass(frozen=True)
class Setup:
    """A row of Table 1: `kv_bytes` for the KV cache on all devices together."""

    name: str
    model: str
    hardware: str
    num_devices: int
    kv_bytes: int

    @cached_property
    def shape(self) -> ModelShape:
        return load_shape(self.model)

    @property
    def token_bytes(self) -> int:
        """`2 * layers * kv_heads * head_dim * bytes`: figures.md, section 2."""
        return round(sum(layer.bytes_per_token(DTYPE) for layer in self.shape.kv_layers))

    @property
    def num_slots(self) -> int:
        return self.kv_bytes // self.token_bytes

    def memory(self, block_size: int = BLOCK_SIZE) -> MemoryPlan:
        return MemoryPlan(
            self.num_slots // block_size, block_size, block_size * self.token_bytes, CONTEXT
        )

    @cached_property
    def counter(self) -> ShapeCounter:
        return ShapeCounter(self.shape, DTYPE, DTYPE, self.num_devices)

    def roofline(self, system: System, block_size: int = BLOCK_SIZE) -> PagedRoofline:
        hardware = load_hardware(self.hardware)
        return PagedRoofline(
            name=f"roofline of {hardware.title}",
            count=self.counter.count,
            peak_flops=hardware.peak_flops(DTYPE),
            bandwidth=hardware.bandwidth,
            peer_bandwidth=hardware.peer_bandwidth,
            overhead=kernel_overhead(block_size) if system.paged else 0.0,
        )

    def times(
        self, system: System, block_size: int = BLOCK_SIZE, overhead: Overhead = NO_OVERHEAD
    ) -> StepTimes:
        times = ShapeTimes(self.counter, self.roofline(system, block_size))
        return OverheadTimes(times, overhead) if any(overhead) else times


def _setup(name: str, model: str, hardware: str, num_devices: int) -> Setup:
    gib = SETUPS[name][0]
    return Setup(name, model, hardware, num_devices, gib * 2**30)


OPT_13B = _setup("OPT-13B", "facebook/opt-13b", "a100-40gb", 1)
OPT_66B = _setup("OPT-66B", "facebook/opt-66b", "a100-40gb", 4)
OPT_175B = _setup("OPT-175B", "facebook/opt-175b", "a100-80gb", 8)
LLAMA_13B = Setup("LLaMA-13B", "huggyllama/llama-13b", "a100-40gb", 1, OPT_13B.kv_bytes)
OPTS = (OPT_13B, OPT_66B, OPT_175B)
