"""The engine's figures on /metrics: what there is, under which names, and that they add up."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from looseleaf.engine.service import EngineService
from looseleaf.server.observing import Observing
from looseleaf.tiers.block_file import MIN_LIMIT
from looseleaf.tiers.disk import DiskStore
from looseleaf.tiers.host import HostStore
from looseleaf.tiers.tiers import KVTiers

HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
    *("request_time_per_output_token_seconds", "request_queue_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    *("request_max_num_generation_tokens", "iteration_tokens_total", "request_params_n"),
    *("request_prefill_kv_computed_tokens", "request_params_max_tokens"),
    "request_num_preemptions",
)
LEGACY = (
    *("gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped"),
    *("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
    *("gpu_prefix_cache_hit_rate", "time_per_output_token_seconds_bucket"),
)
RESIDENCY = ("lifetime", "idle_before_evict", "reuse_gap")


def families(server: Any) -> dict[str, Any]:
    text = server.http().get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def ask(server: Any, prompt: Any, **fields: Any) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 3}
    assert server.http().post("/v1/completions", json=body | fields).status_code == 200


def test_every_name_that_vllm_has_with_its_labels(server: Any) -> None:
    ask(server, [1] * 9)
    found = families(server)
    for name in HISTOGRAMS:
        family = found[f"vllm:{name}"]
        assert family.type == "histogram", name
        for sample in family.samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("tiny", "0"), name
        assert {s.name.rpartition("_")[2] for s in family.samples} == {"bucket", "count", "sum"}
    for name, values in (
        ("num_requests_waiting_by_reason", {"capacity", "deferred"}),
        ("request_success", {"stop", "length", "abort", "error"}),
    ):
        told = found[f"vllm:{name}"].samples
        label = {"reason", "finished_reason"} & set(told[0].labels)
        totals = [s for s in told if not s.name.endswith("_created")]
        assert {s.labels[next(iter(label))] for s in totals} == values
    assert found["vllm:lora_requests_info"].samples[0].labels["max_lora"] == "0"
    names = {family.removeprefix("vllm:") for family in found}
    assert not names & {name.removesuffix("_total").removesuffix("_bucket") for name in LEGACY}
    assert not any("kv_block_lifetime" in name for name in found)
    assert not any("external_prefix" in name for name in found)


def test_no_name_is_told_twice(start_server: Any) -> None:
    server = start_server(observing=Observing(legacy_metric_names=True, kv_sample=1.0))
    text = server.http().get("/metrics").text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) > 50


def test_buckets_are_those_of_vllm(server: Any) -> None:
    found = families(server)

    def bounds(name: str) -> list[float]:
        samples = found[f"vllm:{name}"].samples
        return [float(s.labels["le"]) for s in samples if s.name.endswith("_bucket")]

    assert bounds("time_to_first_token_seconds")[:3] == [0.001, 0.005, 0.01]
    assert bounds("time_to_first_token_seconds")[-2] == 2560
    assert bounds("inter_token_latency_seconds")[-2] == 80
    assert bounds("e2e_request_latency_seconds")[:2] == [0.3, 0.5]
    assert bounds("iteration_tokens_total")[:-1] == [1, *(2.0**i for i in range(3, 15))]
    assert bounds("request_prompt_tokens")[:-1] == [1, 2, 5, 10, 20, 50, 100, 200, 500]


def test_sizes_of_requests(server: Any) -> None:
    ask(server, [1] * 9, n=2)
    ask(server, [1] * 9, max_tokens=6)
    for name, count, total in (
        ("request_params_n", 2, 3),
        ("request_params_max_tokens", 2, 9),
        ("request_prompt_tokens", 2, 18),
        ("request_prefill_kv_computed_tokens", 2, 10),
        ("request_generation_tokens", 3, 12),
        ("request_max_num_generation_tokens", 2, 9),
        ("request_num_preemptions", 2, 0),
        ("request_inference_time_seconds", 3, None),
    ):
        assert server.metric(f"vllm:{name}_count") == count, name
        if total is not None:
            assert server.metric(f"vllm:{name}_sum") == total, name
    # The last token of each sample is not computed, and samples share their prompt's last one.
    assert server.metric("vllm:iteration_tokens_total_sum") == 9 + 2 * 2 + 1 + 5
    assert server.metric("looseleaf_computed_tokens_total") == 19


def test_times_of_requests_add_up(start_server: Any) -> None:
    server = start_server(step_seconds=0.02)
    ask(server, [1] * 9)
    times = {
        name: server.metric(f"vllm:request_{name}_time_seconds_sum")
        for name in ("queue", "prefill", "decode", "inference")
    }
    assert times["inference"] == pytest.approx(times["prefill"] + times["decode"], abs=0.005)
    whole = server.metric("vllm:e2e_request_latency_seconds_sum")
    assert whole == pytest.approx(times["queue"] + times["inference"], abs=0.005)


def test_where_every_slot_and_block_is(start_server: Any) -> None:
    server = start_server(num_blocks=16)
    server.executor.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, server, [1] * 6, max_tokens=20, n=2)
        server.eventually(lambda: server.context.lifecycle.num_answers == 1, "it is under way")
        server.executor.gate.set()
        server.executor.seconds = 0.01

        def slots() -> dict[str, float]:
            told = families(server)["looseleaf_kv_slots"].samples
            return {sample.labels["state"]: sample.value for sample in told}

        server.eventually(lambda: slots()["stored"] > 8, "both are running")
        assert slots()["external"] == 0
        future.result()
    assert sum(slots().values()) == 0
    assert server.metric("looseleaf_kv_copies_on_write_total") > 0


def test_pinned_blocks_and_evictions(start_server: Any) -> None:
    server = start_server(num_blocks=16, num_pinnable=8)
    answer = server.http().post("/v1/cache/pins", json={"model": "tiny", "prompt": "x" * 15})
    assert answer.status_code == 200, answer.text
    assert server.metric("looseleaf_kv_blocks_pinned") == 4
    assert server.metric("looseleaf_kv_blocks", state="held") == 4
    for start in range(4):
        ask(server, [1 + start] * 24)
    assert server.metric("looseleaf_kv_evictions_total") > 0
    assert server.http().delete("/v1/cache/pins/pin-0").status_code == 200
    assert server.metric("looseleaf_kv_blocks_pinned") == 0


def test_old_names_where_they_are_asked_for(start_server: Any) -> None:
    server = start_server(observing=Observing(legacy_metric_names=True))
    for _ in range(2):
        ask(server, [1] * 11)
    text = server.http().get("/metrics").text
    for name in LEGACY:
        assert f"\nvllm:{name}{{" in text, name
    assert server.metric("vllm:gpu_prefix_cache_hits_total") == 10
    assert server.metric("vllm:gpu_prefix_cache_hit_rate") == pytest.approx(10 / 22)
    assert server.metric("vllm:time_per_output_token_seconds_count") == 4


def test_how_long_blocks_stay(start_server: Any) -> None:
    server = start_server(num_blocks=16, observing=Observing(kv_sample=1.0))
    for start in range(8):
        ask(server, [1 + start % 4] * 24)
    for name in RESIDENCY:
        metric = f"vllm:kv_block_{name}_seconds"
        assert f"{metric}_bucket" in server.http().get("/metrics").text
    evicted = server.metric("looseleaf_kv_evictions_total")
    assert server.metric("vllm:kv_block_lifetime_seconds_count") == evicted > 0


def test_what_comes_from_the_tiers(start_server: Any, tmp_path: Path) -> None:
    server = start_server(num_blocks=16, max_model_len=60)
    block_bytes = server.executor.inner.block_bytes
    disk = DiskStore(tmp_path, MIN_LIMIT, "{}")
    tiers = KVTiers(4, block_bytes, HostStore(4 * block_bytes), disk, always_load=True)

    def attach(engine: Any) -> None:
        engine.tiers = engine.scheduler.allocator.tier = tiers

    server.call(attach)
    for _ in range(2):
        for start in range(3):
            ask(server, [1 + start, *range(100, 140)])
    disk.num_damaged = 2
    loaded = [server.metric("looseleaf_kv_blocks_loaded_total", tier=t) for t in ("host", "disk")]
    assert sum(loaded) > 0
    hits = server.metric("vllm:external_prefix_cache_hits_total")
    assert hits == 4 * sum(loaded)
    assert server.metric("vllm:external_prefix_cache_queries_total") >= hits
    assert server.metric("looseleaf_kv_blocks_damaged_total") == 2
    moved = server.metric("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU")
    assert moved == sum(loaded) * server.context.memory.block_bytes


def test_a_service_has_one_meter(server: Any) -> None:
    service: EngineService = server.context.service
    observers = server.call(lambda engine: list(engine.observers))
    assert len(observers) == 1
    assert observers[0].__self__ is service.meter
