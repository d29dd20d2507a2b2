"""What single changes would do: each is replayed, by the same engine, over the same requests."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.plan import run_plan
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary import Summary, as_json
from looseleaf.planner.trace_types import Trace
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

OnProgress = Callable[[int], None]
"""Told how many requests have ended, over all replays."""


class Change(NamedTuple):
    """One thing that is different."""

    name: str
    settings: EngineSettings
    memory: MemoryPlan


class Case(NamedTuple):
    name: str
    num_blocks: int
    block_size: int
    summary: Summary

    def as_json(self) -> dict[str, Any]:
        return {"change": self.name, "summary": as_json(self.summary)}


def first_requests(trace: Trace, num: int) -> Trace:
    return trace._replace(requests=trace.requests[:num])


def changes(settings: EngineSettings, memory: MemoryPlan, longest: int) -> list[Change]:
    """What is planned, and then single changes to it. `longest` is how long a request may become
    where there is memory for it."""
    return list(_changes(settings, memory, longest))


def _changes(settings: EngineSettings, memory: MemoryPlan, longest: int) -> Iterator[Change]:
    yield Change("as planned", settings, memory)
    size = memory.block_size
    for other in dict.fromkeys((max(1, size // 2), 2 * size)):
        blocks = memory.num_tokens // other
        if other != size and blocks:
            changed = replace(settings, block_size=other)
            yield Change(
                f"blocks of {other} tokens", changed, sized(memory, blocks, other, longest)
            )
    if settings.kv_allocator == "paged":
        alone = replace(settings, swap_space=None, kv_disk=None, preemption_mode="auto")
        found = not settings.enable_prefix_caching
        name = "prefix caching" if found else "no prefix caching"
        yield Change(name, replace(alone, enable_prefix_caching=found), memory)
        if settings.swap_space is not None or settings.kv_disk is not None:
            yield Change("nothing outside the KV cache", alone, memory)
    if memory.num_blocks > 1:
        half = sized(memory, memory.num_blocks // 2, size, longest)
        yield Change("half the KV memory", settings, half)
    twice = sized(memory, 2 * memory.num_blocks, size, longest)
    yield Change("twice the KV memory", settings, twice)
    seats = settings.max_num_seqs
    for other in (seats // 2, 2 * seats):
        # In a step, each sequence takes a token at least.
        if 0 < other <= settings.max_num_batched_tokens:
            name = f"at most {other} sequences"
            yield Change(name, replace(settings, max_num_seqs=other), memory)


def sized(memory: MemoryPlan, num_blocks: int, block_size: int, longest: int) -> MemoryPlan:
    """Another pool for the same model."""
    room = num_blocks * block_size
    if room >= memory.num_tokens:
        length = min(longest, max(room, memory.max_model_len))
    else:
        length = min(memory.max_model_len, room)
    block_bytes = round(memory.block_bytes * block_size / memory.block_size)
    return MemoryPlan(num_blocks, block_size, block_bytes, max(2, length))


def part_of(on_progress: OnProgress, number: int, num_requests: int) -> OnProgress:
    """For one of several replays of so many requests, which may have several samples each."""
    return lambda ended: on_progress(number * num_requests + min(ended, num_requests))


def what_if(
    trace: Trace,
    planned: list[Change],
    times: StepTimes,
    on_progress: OnProgress,
    *,
    swap_bandwidth: float | None = None,
    disk_speed: DiskSpeed = ASSUMED,
) -> list[Case]:
    """Step times are those of the same cost model, whatever the change."""
    cases = []
    num = len(trace.requests)
    for number, change in enumerate(planned):
        told = part_of(on_progress, number, num)
        plan = run_plan(
            trace,
            change.settings,
            change.memory,
            times,
            swap_bandwidth=swap_bandwidth,
            disk_speed=disk_speed,
            on_progress=told,
        )
        told(num)  # those that can never fit do not end
        pool = change.memory
        cases.append(Case(change.name, pool.num_blocks, pool.block_size, plan.summary))
    return cases
