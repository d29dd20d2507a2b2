"""A real server on a loopback port, in the process of the test, which sees its engine."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx
import openai

from looseleaf.core.invariants import check
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.executors.base import Executor
from looseleaf.server.context import ServerContext
from looseleaf.server.run import Server

T = TypeVar("T")


class Paced:
    """An executor that takes `seconds` for a step, and waits in it while `gate` is not set."""

    def __init__(self, inner: Executor, seconds: float) -> None:
        self.inner = inner
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def execute(self, step: Step) -> StepResult:
        self.gate.wait(30)
        if self.seconds:
            time.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return self.inner.execute(step)

    def read_block(self, block_id: int) -> bytes:
        return self.inner.read_block(block_id)

    def write_block(self, block_id: int, data: bytes) -> None:
        self.inner.write_block(block_id, data)

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        self.inner.release_blocks(block_ids)

    def close(self) -> None:
        self.inner.close()


@dataclass
class RunningServer:
    context: ServerContext
    executor: Paced
    server: Server
    loop: asyncio.AbstractEventLoop | None = None
    thread: threading.Thread | None = None
    http_client: httpx.Client | None = None
    sockets: list[socket.socket] | None = None
    dead: bool = False
    """Set by tests that break the engine on purpose."""

    def start(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve(self.sockets)

        self.thread = threading.Thread(target=lambda: asyncio.run(main()), name="test-server")
        self.thread.start()
        self.eventually(lambda: bool(self.server.urls), "the server has started")
        self.http()  # here, because threads that make it at once would make several

    def stop(self) -> None:
        assert self.thread is not None
        if self.http_client is not None:
            self.http_client.close()
        self.executor.gate.set()
        self.executor.seconds = 0
        try:
            if not self.dead:
                self.check_idle()
        finally:
            self.server.should_exit = True
            self.thread.join(30)
        assert not self.thread.is_alive()
        assert not any(t.name == "looseleaf-engine" for t in threading.enumerate())

    @property
    def url(self) -> str:
        return self.server.urls[0]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http()
        )

    def http(self) -> httpx.Client:
        if self.http_client is None:
            limits = httpx.Limits(max_connections=100)
            self.http_client = httpx.Client(
                base_url=self.url, timeout=30, limits=limits, verify=False
            )
        return self.http_client

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run `function` in the engine's thread."""
        assert self.loop is not None
        future = asyncio.run_coroutine_threadsafe(self.context.service.call(function), self.loop)
        return future.result(30)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample on /metrics."""
        text = self.http().get("/metrics").text
        for line in text.splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if match is not None and match[1] == name:
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if labels.items() <= found.items():
                    return float(match[3])
        raise AssertionError(f"no metric {name} {labels} in\n{text}")

    def eventually(self, condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.005)

    def check_idle(self) -> None:
        """Every request has ended, and every block is free or evictable."""
        self.eventually(
            lambda: not self.call(lambda engine: engine.scheduler.requests), "no request is left"
        )
        self.call(lambda engine: check(engine.scheduler))
        allocator = self.context.memory.num_blocks
        assert self.call(lambda engine: engine.scheduler.allocator.num_available) == allocator
