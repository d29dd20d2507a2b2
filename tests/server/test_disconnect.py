"""Clients that go away: whatever state their request is in, it ends and its blocks come back."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from looseleaf.core.request import Status
from looseleaf.engine.engine import Engine


def statuses(server: Any) -> list[Status]:
    def read(engine: Engine) -> list[Status]:
        return [request.status for request in engine.scheduler.requests.values()]

    return list(server.call(read))


def computed(server: Any) -> int:
    return int(server.call(lambda engine: engine.scheduler.counters.computed_tokens))


async def drop(
    server: Any, body: dict[str, Any], ready: Callable[[], bool], *, stream: bool
) -> None:
    """Send a request, wait until `ready`, and cut the connection."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:

        async def ask() -> None:
            if not stream:
                await client.post("/v1/completions", json=body)
                return
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for _ in answer.aiter_lines():
                    pass

        task = asyncio.create_task(ask())
        await asyncio.to_thread(server.eventually, ready, "the request is in the state to test")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", ["decode", "prefill", "waiting", "held"])
async def test_c095_a_request_ends_with_its_client(
    start_server: Any, state: str, stream: bool, n: int
) -> None:
    server = start_server(
        max_num_seqs=1 if state == "waiting" else 16, max_num_batched_tokens=8, step_seconds=0.01
    )
    prompt = [1, 2, 3, 4] if state in ("decode", "waiting") else [1, 2, 3, 4] * 90
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 100, "n": n, "stream": stream}
    other = None
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        if state in ("waiting", "held"):
            blocker = {**body, "n": 1, "stream": False, "max_tokens": 60}
            other = asyncio.create_task(client.post("/v1/completions", json=blocker))
            await asyncio.to_thread(server.eventually, lambda: len(statuses(server)) == 1, "runs")

        def ready() -> bool:
            found = statuses(server)
            if state == "decode":
                return found.count(Status.RUNNING) == n
            if state == "prefill":
                return Status.RUNNING in found
            return len(found) == 1 + n and found.count(Status.RUNNING) == 1

        await drop(server, body, ready, stream=stream)
        left = 0 if other is None else 1
        await asyncio.to_thread(
            server.eventually, lambda: len(statuses(server)) == left, "it has ended", 2
        )
        if other is not None:
            answer = await other
            assert answer.json()["usage"]["completion_tokens"] == 60
    assert server.metric("vllm:request_success_total", finished_reason="abort") == n
    assert server.metric("looseleaf_requests_started_total") == n + left
    if state in ("decode", "prefill"):
        assert computed(server) < 360


async def test_c025_fifty_dropped_streams_leave_nothing_behind(start_server: Any) -> None:
    server = start_server(
        num_blocks=40, max_num_seqs=8, max_num_batched_tokens=16, step_seconds=0.002
    )
    rounds = 50

    async def client_number(i: int, client: httpx.AsyncClient) -> None:
        body = {
            "model": "tiny",
            "prompt": [7] * (4 + i % 60) if i % 2 else [i] * (3 + i),
            "max_tokens": 60,
            "n": 1 + i % 3 % 2,
            "stream": True,
        }
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            if i % 5 == 0:
                await asyncio.sleep(0.002 * i)
                return
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data")
                if seen == 3:
                    return

    limits = httpx.Limits(max_connections=rounds)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(client_number(i, client) for i in range(rounds)))
    await asyncio.to_thread(server.check_idle)
    started = server.metric("looseleaf_requests_started_total")
    assert server.metric("vllm:request_success_total", finished_reason="abort") == started >= 50


async def test_several_prompts_are_all_dropped(start_server: Any) -> None:
    server = start_server(step_seconds=0.005)
    body = {
        "model": "tiny",
        "prompt": [[i] * 5 for i in range(6)],
        "max_tokens": 300,
        "stream": True,
        "n": 2,
    }
    await drop(server, body, lambda: len(statuses(server)) == 12, stream=True)
    await asyncio.to_thread(server.eventually, lambda: not statuses(server), "all have ended", 2)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 12
