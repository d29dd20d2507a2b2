"""The same requests with the old ways to reserve memory: what of it would be wasted.

The split is the paper's (Kwon et al., SOSP 2023, section 2.2): slots that hold tokens, slots
reserved for tokens to come, slots that no token will ever use (internal), and what is lost to the
rounding of regions (external).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import KV_ALLOCATORS, EngineSettings
from looseleaf.engine.usage import Usage
from looseleaf.planner.plan import run_plan
from looseleaf.planner.report.what_if import OnProgress, part_of
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace_types import Trace


class Split(NamedTuple):
    """Shares of the memory that is taken; they add up to 1."""

    stored: float
    reserved: float
    internal: float
    external: float


class AllocatorCase(NamedTuple):
    """`max_model_len` is what contiguous-max reserves for each request."""

    name: str
    max_model_len: int
    split: Split | None
    summary: Summary

    def as_json(self) -> dict[str, Any]:
        s = self.summary
        return {
            "allocator": self.name,
            "max_model_len": self.max_model_len,
            "split": None if self.split is None else self.split._asdict(),
            "running_mean": s.running_mean,
            "running_peak": s.running_peak,
            "output_tokens_per_second": s.output_tokens_per_second,
            "ttft_p50": None if s.ttft is None else s.ttft.p50,
            "refused": s.refused,
        }


def split(samples: Iterable[Usage]) -> Split | None:
    """Over all that was seen; None if nothing was ever taken."""
    taken = [one for one in samples if one.allocated]
    total = sum(one.allocated for one in taken)
    if not total:
        return None
    return Split(
        sum(one.stored for one in taken) / total,
        sum(one.reserved for one in taken) / total,
        sum(one.internal for one in taken) / total,
        sum(one.external for one in taken) / total,
    )


def compare_allocators(
    trace: Trace,
    settings: EngineSettings,
    memory: MemoryPlan,
    times: StepTimes,
    on_progress: OnProgress,
) -> list[AllocatorCase]:
    """Without memory besides the KV cache, which the old ones have no use for. Every step is the
    engine's own where memory is contiguous: that takes longer."""
    cases = []
    num = len(trace.requests)
    for number, name in enumerate(KV_ALLOCATORS):
        pool = memory if name == "paged" else in_regions(memory)
        changed = replace(
            settings,
            kv_allocator=name,
            swap_space=None,
            kv_disk=None,
            preemption_mode="recompute",
        )
        told = part_of(on_progress, number, num)
        plan = run_plan(trace, changed, pool, times, on_progress=told)
        told(num)
        found = split(plan.result.usage)
        cases.append(AllocatorCase(name, pool.max_model_len, found, plan.summary))
    return cases


def in_regions(memory: MemoryPlan) -> MemoryPlan:
    """The same pool for requests that its largest region holds, which is a power of two of
    blocks: with longer ones nothing at all would run."""
    largest = 1 << (memory.num_blocks.bit_length() - 1)
    return replace(memory, max_model_len=min(memory.max_model_len, largest * memory.block_size))
