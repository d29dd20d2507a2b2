"""What looking on costs the engine: throughput with viewers of the studio, and without.

    python benchmarks/studio.py [--executor native|scripted] [--viewers 3] [--running N] [--json]

Requests run all the time, in one process with the engine and the feed, as in a server; the viewers
are connections of another process, which reads what comes and looks at nothing. Windows with and
without viewers take turns; the ratio is that of the tokens in all windows of each kind, and the
spread is that of neighbours. `native` computes with the default model. `scripted` computes nothing,
so that the bookkeeping is all that there is: the hardest case, for the feed is Python as well. On a
machine with other things to do, windows differ by more than viewers cost; the processor's time for
a token, also printed, differs less.
"""

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from machine import facts

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.build import build
from looseleaf.engine.engine import Engine
from looseleaf.engine.service import EngineService
from looseleaf.engine.settings import EngineSettings
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.studio import FEED, Studio
from looseleaf.server.studio_app import StudioServer
from looseleaf.studio.hub import Hub

NUM_BLOCKS, BLOCK_SIZE = 100_000, 16
PROMPT_TOKENS = (8, 16)
OUTPUT_TOKENS = (100, 300)
"""Short prompts, for their tokens are computed faster: windows should not differ by them."""

VOCAB = 4000

READER = """
import selectors, socket, sys
host, port, path, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
poll = selectors.DefaultSelector()
for _ in range(count):
    connection = socket.create_connection((host, port))
    connection.sendall(f"GET {path} HTTP/1.1\\r\\nhost: {host}\\r\\n\\r\\n".encode())
    poll.register(connection, selectors.EVENT_READ)
seen = set()
while True:
    for key, _ in poll.select():
        if not key.fileobj.recv(1 << 20):
            sys.exit("the feed has ended")
        seen.add(key.fileobj)
        if len(seen) == count:
            print("ready", flush=True)
            count = -1
"""


class Instant:
    """Draws one token for everybody, at once."""

    def execute(self, step: Step) -> StepResult:
        return StepResult(step.step_id, (VOCAB,) * sum(len(s.samples) for s in step.sequences))

    def read_block(self, block_id: int) -> bytes:
        return b""

    def write_block(self, block_id: int, data: bytes) -> None:
        pass

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def make_service(executor: str, running: int) -> EngineService:
    settings = EngineSettings(max_num_seqs=running, max_num_batched_tokens=max(256, 2 * running))
    stack = build(settings)
    if executor == "native":
        return EngineService(stack.engine, stack.tokenizer)
    scheduler = Scheduler(
        SchedulerConfig(4096, running, max(256, 2 * running)),
        BlockTables(CacheConfig(NUM_BLOCKS, BLOCK_SIZE), BlockHasher(BLOCK_SIZE, b"bench")),
    )
    return EngineService(Engine(scheduler, Instant()), stack.tokenizer)


async def keep_asking(service: EngineService, seed: int) -> None:
    """One request after the other, each another one."""
    rng = random.Random(seed)
    while True:
        prompt = [rng.randrange(100, VOCAB) for _ in range(rng.randint(*PROMPT_TOKENS))]
        params = SamplingParams(
            max_tokens=rng.randint(*OUTPUT_TOKENS), temperature=0, ignore_eos=True
        )
        async for _ in service.stream(service.submit(prompt, params)):
            pass


@asynccontextmanager
async def viewers(count: int, host: str, port: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READER, host, str(port), FEED, str(count)),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.terminate()
        await process.wait()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    service = make_service(options.executor, options.running)
    service.start()
    hub = Hub(service.call, model="bench", misses=service.meter.misses)
    tokens: dict[str, list[float]] = {"without": [], "with": []}
    processor: dict[str, list[float]] = {"without": [], "with": []}
    steps: list[int] = []

    async def window(kind: str) -> None:
        def counts(engine: Engine) -> tuple[float, int, int, float]:
            counters = engine.scheduler.counters
            used = time.process_time()
            return engine.clock(), counters.computed_tokens, counters.steps, used

        await asyncio.sleep(options.pause)
        start, before, first, used = await service.call(counts)
        await asyncio.sleep(options.seconds)
        end, after, last, used_after = await service.call(counts)
        tokens[kind].append((after - before) / (end - start))
        processor[kind].append((used_after - used) / (after - before))
        steps.append(round((last - first) / (end - start)))

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        host, port = listener.getsockname()
        server = StudioServer(Studio(hub))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        asking = [
            asyncio.create_task(keep_asking(service, seed)) for seed in range(options.running)
        ]
        await asyncio.sleep(options.warm_up)
        for i in range(options.rounds):
            # Which comes first takes turns too.
            for kind in ("without", "with") if i % 2 == 0 else ("with", "without"):
                if kind == "with":
                    async with viewers(options.viewers, host, port):
                        await window(kind)
                else:
                    await window(kind)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        server.should_exit = True
        await serving
    await service.stop()
    pairs = sorted(
        one / other for one, other in zip(tokens["with"], tokens["without"], strict=True)
    )
    return {
        "executor": options.executor,
        "running": options.running,
        "viewers": options.viewers,
        "windows": 2 * options.rounds,
        "window_s": options.seconds,
        "steps_per_s": median(steps),
        "tokens_per_s_without": round(sum(tokens["without"]) / options.rounds, 1),
        "tokens_per_s_with": round(sum(tokens["with"]) / options.rounds, 1),
        "ratio": round(sum(tokens["with"]) / sum(tokens["without"]), 4),
        "ratio_of_neighbours": [round(pairs[0], 4), round(median(pairs), 4), round(pairs[-1], 4)],
        "processor_us_per_token_without": round(1e6 * median(processor["without"]), 1),
        "processor_us_per_token_with": round(1e6 * median(processor["with"]), 1),
        "machine": facts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executor", choices=("native", "scripted"), default="native")
    parser.add_argument("--viewers", type=int, default=3)
    parser.add_argument("--running", type=int, help="requests at once (16; scripted: 497)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before each window")
    parser.add_argument("--warm-up", type=float, default=8.0, help="seconds before the first")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.running = options.running or (16 if options.executor == "native" else 497)
    result = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(result))
        return
    least, middle, most = result["ratio_of_neighbours"]
    print(
        f"{options.executor}, {options.running} requests at once, {result['steps_per_s']} steps/s\n"
        f"  without viewers  {result['tokens_per_s_without']:10.1f} tokens/s\n"
        f"  with {options.viewers} viewers   {result['tokens_per_s_with']:10.1f} tokens/s\n"
        f"  ratio            {result['ratio']:10.2%}   (of neighbours: {least:.2%} to {most:.2%}, "
        f"median {middle:.2%})\n"
        f"  processor        {result['processor_us_per_token_without']:.1f} us a token without, "
        f"{result['processor_us_per_token_with']:.1f} us with"
    )


if __name__ == "__main__":
    main()
