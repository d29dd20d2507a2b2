"""The hit rate of a trace under live load: by the engine, while requests hold blocks and wait."""

from collections.abc import Callable
from typing import NamedTuple

from looseleaf.core.block_tables import blocks_for
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.cost_model import roofline
from looseleaf.planner.dtypes import kv_dtype
from looseleaf.planner.fit import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    check_parallel,
)
from looseleaf.planner.hardware import Hardware
from looseleaf.planner.hit_rate import HitRate
from looseleaf.planner.plan import check_num_blocks, run_plan
from looseleaf.planner.replay import Outcome
from looseleaf.planner.shape_work import ShapeCounter
from looseleaf.planner.shapes import ModelShape
from looseleaf.planner.step_times import ShapeTimes
from looseleaf.planner.summary import Summary
from looseleaf.planner.trace_types import Trace


class Deployment(NamedTuple):
    """What serves the trace. Its KV cache has as many blocks as it is asked about, whatever the
    devices' memory is: a pool in main memory is larger than theirs."""

    shape: ModelShape
    hardware: Hardware
    num_devices: int


class LiveHits(NamedTuple):
    """`rate` is over the whole trace from an empty cache, by the first admission of each request:
    what is computed again after a preemption is no hit. A prompt that is stored as a whole counts
    with all its blocks, though its last token is always computed."""

    rate: HitRate
    summary: Summary


def live_hits(
    trace: Trace,
    deployment: Deployment,
    capacity: int,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> LiveHits:
    """Replay a trace that has times on an engine with `capacity` blocks, as long as the trace's.
    Raises ConfigError for devices that cannot share the model, and for too many blocks."""
    shape, hardware, num_devices = deployment
    check_parallel(shape, num_devices)
    check_num_blocks(capacity)
    size = trace.hashed_tokens
    settings = EngineSettings(
        block_size=size,
        max_num_seqs=DEFAULT_MAX_NUM_SEQS,
        max_num_batched_tokens=DEFAULT_MAX_NUM_BATCHED_TOKENS,
    )
    counter = ShapeCounter(shape, tensor_parallel_size=num_devices)
    times = ShapeTimes(counter, roofline(hardware, counter.count, shape.dtype))
    dtype = kv_dtype(shape.kv_dtype)
    block_bytes = size * sum(layer.bytes_per_token(dtype) for layer in shape.kv_layers)
    longest = min(shape.max_model_len, capacity * size)
    memory = MemoryPlan(capacity, size, round(block_bytes), longest)
    plan = run_plan(trace, settings, memory, times, on_progress=on_progress)
    outcomes = plan.result.outcomes
    blocks = sum(blocks_for(o.num_prompt_tokens, size) for o in outcomes)
    found = sum(_blocks_found(o, size) for o in outcomes)
    rate = HitRate(capacity, found / blocks if blocks else 0.0, plan.summary.hit_rate)
    return LiveHits(rate, plan.summary)


def _blocks_found(outcome: Outcome, size: int) -> int:
    cached, prompt = outcome.num_cached_tokens, outcome.num_prompt_tokens
    return blocks_for(prompt, size) if cached >= prompt - 1 else cached // size
