"""A real server process with the real model, and 32 clients of the official library at once."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from serving import MODEL, SECONDS, Served, serving

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

CLIENTS = 32
MAX_TOKENS = 8
SYSTEM = (
    "You are the reading-room assistant of a small public library. Readers come with short "
    "questions and little time. Answer in one or two plain sentences. Never invent a title, an "
    "author or a date: if you do not know, say so and name a desk that may help. Books are lent "
    "for three weeks and may be renewed twice. Journals and maps stay in the house. The library "
    "opens at nine and closes at seven, on Saturdays at four, and stays closed on Sundays."
)
SYSTEM_TOKENS = 96
"""Fewer than it has."""


@dataclass
class Crowded:
    """A server that many ask at once, and its figures."""

    served: Served

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        limits = httpx.Limits(max_connections=2 * CLIENTS)
        async with (
            httpx.AsyncClient(timeout=SECONDS, limits=limits, verify=False) as http,
            AsyncOpenAI(
                base_url=f"{self.served.url}/v1", api_key="none", max_retries=0, http_client=http
            ) as client,
        ):
            yield client

    def metrics(self) -> dict[str, float]:
        """Every sample by its name, and its last label if it has more than the common two."""
        found = {}
        for line in httpx.get(f"{self.served.url}/metrics", timeout=SECONDS).text.splitlines():
            match = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line)
            if match is not None:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
                more = [v for k, v in labels.items() if k not in ("model_name", "engine", "le")]
                found[" ".join([match[1], *more])] = float(match[3])
        return found

    async def idle(self) -> dict[str, float]:
        """The metrics once every block is free or evictable, which takes a step or two."""
        deadline = time.monotonic() + 10
        while True:
            metrics = await asyncio.to_thread(self.metrics)
            total = metrics["looseleaf_kv_pool_blocks"]
            available = sum(metrics[f"looseleaf_kv_blocks {s}"] for s in ("free", "evictable"))
            if metrics["vllm:num_requests_running"] == 0 and available == total > 0:
                break
            assert time.monotonic() < deadline, metrics
            await asyncio.sleep(0.1)
        assert metrics["looseleaf_kv_blocks held"] == 0
        assert metrics["vllm:kv_cache_usage_perc"] == 0
        assert metrics["vllm:num_requests_waiting"] == 0
        started = metrics["looseleaf_requests_started_total"]
        reasons = ("stop", "length", "abort", "error")
        assert started == sum(metrics[f"vllm:request_success_total {r}"] for r in reasons)
        assert metrics["vllm:request_success_total error"] == 0
        return metrics


@pytest.fixture(scope="module")
def crowded(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowded]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, "--max-model-len", "1024", "--kv-cache-memory", "600MiB") as served:
        yield Crowded(served)


@dataclass
class Heard:
    text: str = ""
    chunks: int = 0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


async def chat(client: AsyncOpenAI, question: str, *, leave_after: int | None = None) -> Heard:
    """Ask, and listen to the end or until there were `leave_after` pieces of text."""
    heard = Heard()
    more: dict[str, Any] = {"ignore_eos": True} if leave_after is not None else {}
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        max_tokens=MAX_TOKENS if leave_after is None else 300,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=more,
    )
    async with stream:
        async for chunk in stream:
            for choice in chunk.choices:
                piece = choice.delta.content or ""
                heard.text += piece
                heard.chunks += bool(piece)
                heard.finish_reason = choice.finish_reason or heard.finish_reason
            if chunk.usage is not None:
                heard.prompt_tokens = chunk.usage.prompt_tokens
                heard.completion_tokens = chunk.usage.completion_tokens
                heard.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens
            if leave_after is not None and heard.chunks >= leave_after:
                break
    return heard


def question(number: int) -> str:
    return f"{number} plus {number} is how much, and why?"


def check_finished(heard: Heard) -> None:
    assert heard.finish_reason in ("length", "stop")
    assert 1 <= heard.completion_tokens <= MAX_TOKENS
    assert heard.finish_reason == "stop" or heard.completion_tokens == MAX_TOKENS
    assert heard.text
    assert SYSTEM_TOKENS < heard.cached_tokens < heard.prompt_tokens


async def test_32_chats_share_a_system_prompt(crowded: Crowded) -> None:
    before = await crowded.idle()
    async with crowded.client() as client:
        heard = await asyncio.gather(*(chat(client, question(i)) for i in range(CLIENTS)))
    # One computes the system prompt; everybody else finds it stored.
    first = min(heard, key=lambda h: h.cached_tokens)
    assert first.cached_tokens == 0
    heard.remove(first)
    assert first.finish_reason in ("length", "stop")
    for other in heard:
        check_finished(other)
    after = await crowded.idle()
    assert after["looseleaf_requests_started_total"] == CLIENTS
    assert after["vllm:request_success_total abort"] == 0
    assert after["vllm:prompt_tokens_total"] == sum(h.prompt_tokens for h in [first, *heard])
    assert after["vllm:prompt_tokens_cached_total"] == sum(h.cached_tokens for h in heard)
    assert after["vllm:generation_tokens_total"] == sum(
        h.completion_tokens for h in [first, *heard]
    )
    assert after["looseleaf_kv_blocks evictable"] > before["looseleaf_kv_blocks evictable"] == 0


async def test_half_of_32_clients_leave_in_the_middle(crowded: Crowded) -> None:
    before = await crowded.idle()
    async with crowded.client() as client:
        alone = await chat(client, question(100))
        heard = await asyncio.gather(
            *(
                chat(client, question(100 + i), leave_after=1 + i % 3 if i % 2 else None)
                for i in range(CLIENTS)
            )
        )
        after = await crowded.idle()
        staying, leaving = heard[::2], heard[1::2]
        for other in staying:
            check_finished(other)
        assert staying[0].text == alone.text
        assert all(h.finish_reason is None and h.chunks >= 1 for h in leaving)
        aborted = "vllm:request_success_total abort"
        assert after[aborted] - before[aborted] == CLIENTS // 2
        # What was freed can be had again.
        again = await chat(client, question(100))
    assert again.text == alone.text
    assert again.cached_tokens == again.prompt_tokens - 1
    await crowded.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_json_of_a_schema(crowded: Crowded, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "country": {"enum": ["France", "Japan", "Peru"]},
            "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        },
        "required": ["country", "population"],
        "additionalProperties": False,
    }
    with OpenAI(base_url=f"{crowded.served.url}/v1", api_key="none") as client:
        answer: Any = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Where is Tokyo? Answer as JSON."}],
            temperature=0,
            max_tokens=60,
            stream=stream,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "place", "schema": schema, "strict": True},
            },
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            text = answer.choices[0].message.content
    value = json.loads(text)
    assert value["country"] in ("France", "Japan", "Peru")
    assert 0 <= value["population"] <= 99999999


def test_sigterm_ends_it_with_status_zero(crowded: Crowded) -> None:
    crowded.served.process.send_signal(signal.SIGTERM)
    assert crowded.served.process.wait(SECONDS) == 0
    log = crowded.served.log.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
