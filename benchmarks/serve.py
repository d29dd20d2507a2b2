"""What the HTTP server costs, and what it takes.

    python benchmarks/serve.py [overhead] [native] [start] [load] [overload] [--json]

`overhead`: tokens a second that one server process streams to `--clients` clients where the
executor does no arithmetic; where the server is late, several come in one chunk. `native`: the
same work by `LLM.generate` and over HTTP, in turn. `start`: from the start of the process to the
first token over HTTP, next to the servers of the peers that are in build/peers. `load`: `--streams`
streaming clients for `--minutes`, of which a fifth leave early, some read slowly, some cut off
their bodies, and half are killed at once; then what is left after `--rest` seconds. `overload`: ten
times as many requests as may run, for `--minutes`.

Servers are processes of their own, on a loopback port.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from machine import facts
from peers.processes import PeerError
from peers.servers import Command, first_token_s, installed_servers

from looseleaf.bench.machine import usable_cores
from looseleaf.engine.llm import LLM
from looseleaf.sampling.params import SamplingParams

OURS = "looseleaf"
START_TIMEOUT_S = 300
PAGE = os.sysconf("SC_PAGE_SIZE")


class Served:
    """A server process. Ask it for its figures, and stop it by its id."""

    def __init__(self, *words: str, started: float) -> None:
        self.started = started
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *words], stderr=self._log, stdout=subprocess.DEVNULL
        )
        self.port = self._port()

    def _port(self) -> int:
        while time.monotonic() < self.started + 60:
            self._log.seek(0)
            text = self._log.read()
            found = re.search(r"http://127\.0\.0\.1:(\d+)", text)
            if found:
                return int(found[1])
            if self.process.poll() is not None:
                raise RuntimeError(f"the server did not start: {text[-2000:]}")
            time.sleep(0.005)
        raise RuntimeError("the server did not start within a minute")

    @property
    def memory_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE / 2**20

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def load(self) -> dict[str, int]:
        found: dict[str, int] = httpx.get(f"http://127.0.0.1:{self.port}/load").json()
        return found

    def metric(self, name: str, **labels: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        total = 0.0
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[Served]:
    started = time.monotonic()
    server = await asyncio.to_thread(lambda: Served(*words, started=started))
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


def real(*options: str) -> tuple[str, ...]:
    return ("-m", "looseleaf", "serve", "--port", "0", *options)


class Stream:
    """One streamed completion over a socket of its own: when each chunk came."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self._port = port
        self._body = body
        self.status = 0
        self.times: list[float] = []
        self.bytes = bytearray()
        self.sent = self.closed = 0.0
        self.ended = False

    async def run(
        self,
        *,
        leave_after: int | None = None,
        pause: float = 0,
        cut: bool = False,
        wake_bytes: int = 1,
    ) -> None:
        """Of `wake_bytes` bytes, or of the end, the system tells this process at once."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        plug = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
        try:
            data = json.dumps(self._body).encode()
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
            )
            self.sent = time.perf_counter()
            writer.write(head.encode() + (data[: len(data) // 2] if cut else data))
            await writer.drain()
            if cut:
                return
            self.status = int((await reader.readline()).split()[1])
            while piece := await reader.read(65536):
                now = time.perf_counter()
                self.bytes += piece
                self.times += [now] * piece.count(b"data: {")
                if leave_after is not None and len(self.times) >= leave_after:
                    return
                if pause:
                    await asyncio.sleep(pause)
            self.closed = time.perf_counter()
            self.ended = b"[DONE]" in self.bytes
        finally:
            writer.close()

    @property
    def retry_after_s(self) -> float:
        found = re.search(rb"(?i)\r\nretry-after: (\d+)", b"\r\n" + self.bytes)
        return float(found[1]) if found else 0.0


def completion(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    fields = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    return fields | {"stream": True, "temperature": 0} | more


async def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second over HTTP without a model."""
    async with served(str(Path(__file__).with_name("scripted_server.py"))) as server:
        rates = []
        for _ in range(options.rounds + 1):
            streams = [
                Stream(server.port, completion([1, 2, 3], options.tokens))
                for _ in range(options.clients)
            ]
            start = time.perf_counter()
            await asyncio.gather(*(stream.run() for stream in streams))
            seconds = time.perf_counter() - start
            assert all(stream.ended for stream in streams)
            rates.append(options.clients * options.tokens / seconds)
        return {
            "clients": options.clients,
            "tokens_each": options.tokens,
            "tokens_per_s": statistics.median(rates[1:]),
            "chunks_per_token": sum(len(s.times) for s in streams)
            / (options.clients * options.tokens),
            "bytes_per_token": len(streams[0].bytes) / options.tokens,
        }


async def native(options: argparse.Namespace) -> dict[str, Any]:
    """`LLM.generate` and the server on the same prompts, in turn."""
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 40000) for _ in range(64)] for _ in range(32)]
    count = options.output_tokens
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    rates: dict[str, list[float]] = {"python": [], "http": []}
    async with served(*real("--served-model-name", "m", "--no-enable-prefix-caching")) as server:
        with LLM(enable_prefix_caching=False) as llm:
            for _ in range(options.rounds + 1):
                start = time.perf_counter()
                llm.generate(prompts, params, use_tqdm=False)
                rates["python"].append(32 * count / (time.perf_counter() - start))
                streams = [Stream(server.port, completion(prompt, count)) for prompt in prompts]
                start = time.perf_counter()
                # Each chunk is sent when it is made. But this process, which has no processor of
                # its own as a client elsewhere would, does not get up for each.
                await asyncio.gather(*(stream.run(wake_bytes=4096) for stream in streams))
                rates["http"].append(32 * count / (time.perf_counter() - start))
    ratios = [http / python for http, python in zip(rates["http"], rates["python"], strict=True)]
    return {name: statistics.median(found[1:]) for name, found in rates.items()} | {
        "cost": 1 - statistics.median(ratios[1:])
    }


async def start(options: argparse.Namespace) -> dict[str, Any]:
    """Ours and the installed peers' servers in turn. The first round only warms the file cache."""
    contestants = {OURS: _our_command, **installed_servers(usable_cores())}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    errors: dict[str, str] = {}
    for _ in range(options.rounds + 1):
        for name, command in contestants.items():
            if name in errors:
                continue
            try:
                found = await asyncio.to_thread(first_token_s, command, START_TIMEOUT_S)
            except PeerError as error:
                errors[name] = str(error)
            else:
                seconds[name].append(found)
    medians = {n: statistics.median(found[1:]) for n, found in seconds.items() if n not in errors}
    return {"first_token_s": medians} | ({"errors": errors} if errors else {})


def _our_command(port: int) -> Command:
    words = ("-m", "looseleaf", "serve", "--port", port, "--served-model-name", "m")
    return Command((sys.executable, *words))


async def load(options: argparse.Namespace) -> dict[str, Any]:
    """What is asked of the server is random; what it must not do is grow. The first minute does not
    count: what so many connections at once need is then there."""
    words = ("--served-model-name", "m", "--max-model-len", "1024", "--kv-cache-memory", "256MiB")
    async with served(*real(*words)) as server:
        # Memory of the pool is taken when it is first used.
        fill = [Stream(server.port, completion([i] * 700, 64)) for i in range(1000, 1032)]
        await asyncio.gather(*(stream.run() for stream in fill))
        await _storm(server.port, options.streams, 1)
        await asyncio.sleep(options.rest)
        before = _figures(server)
        streams = await _storm(server.port, options.streams, options.minutes)
        await asyncio.sleep(options.rest)
        after = _figures(server)
        gaps = [b - a for s in streams for a, b in zip(s.times, s.times[1:], strict=False) if b > a]
        return {
            "requests": len(streams),
            "ended": sum(stream.ended for stream in streams),
            "statuses": dict(Counter(s.status for s in streams)),
            "p50_inter_token_s": _quantile(gaps, 0.5),
            "p99_inter_token_s": _quantile(gaps, 0.99),
            "before": before,
            "after": after,
        }


async def _storm(port: int, clients: int, minutes: float) -> list[Stream]:
    """So many clients at a time. Half of them are killed at once, at half-time, and replaced."""
    rng = random.Random(1)
    streams: list[Stream] = []
    end = time.monotonic() + 60 * minutes

    async def client() -> None:
        while time.monotonic() < end:
            prompt = [rng.randrange(1000, 40000) for _ in range(rng.randint(4, 64))]
            stream = Stream(port, completion(prompt, rng.randint(4, 32)))
            streams.append(stream)
            leaves = rng.randint(0, 4) if rng.random() < 0.2 else None
            await stream.run(
                leave_after=leaves,
                pause=0.05 if rng.random() < 0.1 else 0,
                cut=rng.random() < 0.05,
            )

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    await asyncio.sleep(30 * minutes)
    for task in tasks[::2]:
        task.cancel()
    half = [asyncio.create_task(client()) for _ in tasks[::2]]
    await asyncio.gather(*tasks, *half, return_exceptions=True)
    return streams


async def overload(options: argparse.Namespace) -> dict[str, Any]:
    """The same requests, first as many as run at once, then ten times as many. Who is refused
    comes again when the answer says."""
    words = real(
        *("--served-model-name", "m", "--max-model-len", "1024", "--max-num-seqs", "16"),
        *("--max-num-queued-reqs", "4"),
    )
    rng = random.Random(2)
    found: dict[str, Any] = {}
    async with served(*words) as server:
        for name, count, minutes in (("alone", 16, 0.25), ("overload", 160, options.minutes)):
            streams: list[Stream] = []
            end = time.monotonic() + 60 * minutes

            async def client(
                delay: float, end: float = end, streams: list[Stream] = streams
            ) -> None:
                await asyncio.sleep(delay)  # not all in the same instant
                while time.monotonic() < end:
                    prompt = [rng.randrange(1000, 40000) for _ in range(32)]
                    stream = Stream(server.port, completion(prompt, 32))
                    await stream.run()
                    streams.append(stream)
                    if stream.status == 429:
                        await asyncio.sleep(stream.retry_after_s)

            await asyncio.gather(*(client(number / count) for number in range(count)))
            taken = [s for s in streams if s.status == 200]
            refused = [s for s in streams if s.status == 429]
            found[name] = {
                "statuses": dict(Counter(s.status for s in streams)),
                "ttft_p50_s": _quantile([s.times[0] - s.sent for s in taken], 0.5),
                "latency_p50_s": _quantile([s.times[-1] - s.sent for s in taken], 0.5),
                "refused_p99_s": _quantile([s.closed - s.sent for s in refused], 0.99),
                "memory_mib": server.memory_mib,
            }
    return found


def _figures(server: Served) -> dict[str, float]:
    """Blocks, tasks and files among them: what must be the same after a load as before."""
    load = server.load()
    return {
        "memory_mib": round(server.memory_mib, 1),
        "files": server.files,
        "answers": load["server_load"],
        "connections": load["connections"],
        "tasks": load["tasks"],
        "blocks_held": server.metric("looseleaf_kv_blocks", state="held"),
        "running": server.metric("vllm:num_requests_running"),
        "waiting": server.metric("vllm:num_requests_waiting"),
    }


def _quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "overhead": overhead,
    "native": native,
    "start": start,
    "load": load,
    "overload": overload,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64, help="of overhead")
    parser.add_argument("--tokens", type=int, default=256, help="for each of them")
    parser.add_argument(
        "--output-tokens", type=int, default=200, help="of native; about what chats have"
    )
    parser.add_argument("--streams", type=int, default=256, help="at once, of load")
    parser.add_argument("--minutes", type=float, default=3, help="of load and of overload")
    parser.add_argument("--rest", type=float, default=60, help="seconds after the load")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.parts or PARTS:
        print(f"{name} ...", file=sys.stderr)
        results[name] = asyncio.run(PARTS[name](options))
        if not options.json:
            print(name, json.dumps(results[name], indent=2))
    results["machine"] = facts()
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
