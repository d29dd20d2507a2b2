"""/metrics: names, values, and that nothing in there can hurt a request."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

REASONS = ("stop", "length", "abort", "error")


def ended(server: Any) -> dict[str, float]:
    return {
        reason: server.metric("vllm:request_success_total", finished_reason=reason)
        for reason in REASONS
    }


def test_the_names_that_dashboards_ask_for(server: Any) -> None:
    text = server.http().get("/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "looseleaf_kv_pool_blocks",
        "looseleaf_kv_copies_on_write_total",
        "looseleaf_kv_waste",
        "looseleaf_held_back_total",
    ):
        assert f'{name}{{engine="0"' in text or f'{name}{{model_name="tiny"' in text, name
    assert 'block_size="4"' in text
    assert 'num_gpu_blocks="256"' in text
    assert 'le="0.001"' in text
    assert 'le="2560.0"' in text
    assert server.metric("vllm:kv_cache_usage_perc", model_name="tiny", engine="0") == 0


def test_counts_and_blocks(server: Any) -> None:
    client = server.client()
    for _ in range(2):
        client.completions.create(model="tiny", prompt=[1] * 10, max_tokens=4, n=2)
    assert server.metric("vllm:prompt_tokens_total") == 20
    assert server.metric("vllm:generation_tokens_total") == 16
    assert server.metric("vllm:prefix_cache_queries_total") == 20
    assert server.metric("vllm:prefix_cache_hits_total") == 9
    assert server.metric("vllm:prompt_tokens_cached_total") == 9
    assert server.metric("vllm:time_to_first_token_seconds_count") == 4
    assert server.metric("vllm:inter_token_latency_seconds_count") == 12
    assert server.metric("vllm:e2e_request_latency_seconds_count") == 4
    assert server.metric("vllm:request_queue_time_seconds_count") == 2
    assert server.metric("looseleaf_kv_copies_on_write_total") > 0
    states = [server.metric("looseleaf_kv_blocks", state=s) for s in ("free", "evictable", "held")]
    assert sum(states) == server.metric("looseleaf_kv_pool_blocks") == 256
    assert states[1] > 0
    assert states[2] == 0


def test_gauges_while_requests_run(start_server: Any) -> None:
    server = start_server(max_num_seqs=2, step_seconds=0.005)
    client = server.client()

    def ask(i: int) -> None:
        client.completions.create(model="tiny", prompt=[i] * 8, max_tokens=100, n=1)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, i) for i in range(4)]
        server.eventually(lambda: server.metric("vllm:num_requests_waiting") == 2, "two wait")
        assert server.metric("vllm:num_requests_running") == 2
        assert 0 < server.metric("vllm:kv_cache_usage_perc") < 1
        assert 0 < server.metric("looseleaf_kv_utilization", kind="physical") <= 1
        assert server.metric("looseleaf_kv_blocks", state="held") > 0
        for future in futures:
            future.result()
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:num_requests_waiting") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_c165_every_sample_ends_in_one_counter(start_server: Any) -> None:
    server = start_server(step_seconds=0.003)
    client = server.client()

    def ask(i: int) -> None:
        arguments: Any = {"model": "tiny", "prompt": f"prompt {i}"}
        if i < 3:
            stream = client.completions.create(**arguments, max_tokens=400, stream=True)
            next(iter(stream))
            stream.close()
        elif i < 6:
            client.completions.create(**arguments, max_tokens=100, stop="z")
        else:
            client.completions.create(**arguments, max_tokens=5)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(ask, range(10)))
    server.eventually(lambda: sum(ended(server).values()) == 10, "all ten have ended")
    assert ended(server) == {"stop": 3, "length": 4, "abort": 3, "error": 0}
    assert server.metric("looseleaf_requests_started_total") == 10
    assert server.metric("vllm:num_requests_running") == 0


def test_c019_a_broken_metric_does_not_reach_a_request(
    start_server: Any, chat_body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    metrics = server.context.metrics
    for name in ("_histograms", "_prompt_tokens", "_started", "_generation_tokens", "_answers"):
        setattr(metrics, name, None)
    metrics._ended = {}
    client = server.client()
    answer = client.chat.completions.create(**chat_body, n=2)
    assert answer.usage.completion_tokens == 10
    pieces = list(client.chat.completions.create(**chat_body, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == answer.choices[0].message.content
    failures = [r for r in caplog.records if "logged once" in r.msg]
    assert len(failures) == len({r.getMessage() for r in failures}) > 0


def test_the_first_scrape_of_a_busy_server_has_all_figures_and_soon(start_server: Any) -> None:
    server = start_server()
    server.executor.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 3}
        future = pool.submit(server.http().post, "/v1/completions", json=body)
        server.eventually(lambda: server.context.lifecycle.num_answers == 1, "it is under way")
        start = time.monotonic()
        assert server.metric("looseleaf_kv_pool_blocks") == 256
        assert time.monotonic() - start < 2
        # What the engine says too late for this scrape is there for the next.
        server.executor.gate.set()
        assert future.result().status_code == 200
        server.eventually(lambda: server.metric("looseleaf_steps_total") > 0, "fresh figures")


def test_times_are_those_of_the_engines_clock(server: Any) -> None:
    service = server.context.service
    behind = 1000.0

    def clock() -> float:
        return time.monotonic() - behind

    server.call(lambda engine: setattr(engine, "clock", clock))
    service.clock = clock
    body = {"model": "tiny", "prompt": "x", "max_tokens": 3}
    assert server.http().post("/v1/completions", json=body).status_code == 200
    for name in ("request_queue_time", "request_prefill_time", "e2e_request_latency"):
        assert 0 <= server.metric(f"vllm:{name}_seconds_sum") < 100
    assert 0 <= server.metric("vllm:time_to_first_token_seconds_sum") < 100


def test_a_scrape_survives_an_engine_that_does_not_answer(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.server.metrics.SCRAPE_SECONDS", 0.05)
    before = server.metric("looseleaf_kv_pool_blocks")

    async def silent(function: Any) -> Any:
        raise RuntimeError("no answer")

    monkeypatch.setattr(server.context.service, "call", silent)
    assert server.metric("looseleaf_kv_pool_blocks") == before
    monkeypatch.undo()
