"""What the page's own tests read: frames, and what the core said. A change of the feed shows here.

`python -m pytest tests/studio/test_page_data.py --write-page-data` writes it anew.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bookkeeping import VOCAB_SIZE, Bench, make_request

from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.engine.snapshot import snapshot
from looseleaf.engine.usage import usage
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import HASH_DIGITS, encode

FILE = Path(__file__).resolve().parents[2] / "web" / "tests" / "unit" / "recording.json"


class Timeless(ScriptedExecutor):
    """Takes no time, so that frames are the same each time."""

    def execute(self, step: Step) -> StepResult:
        return super().execute(step)._replace(durations=())


def make_engine() -> Engine:
    bench = Bench(num_blocks=24, block_size=4, max_model_len=48, max_num_seqs=6)
    bench.tables.events = None
    bench.tables.pool.events = None
    ticks: Iterator[int] = iter(range(10**9))
    executor = Timeless(24, 4, vocab_size=VOCAB_SIZE)
    return Engine(bench.scheduler, executor, lambda: next(ticks) / 100)


def state(engine: Engine, seq: int) -> dict[str, Any]:
    now = snapshot(engine.scheduler)
    used = usage(engine.scheduler.allocator, engine.scheduler.running)
    return {
        "seq": seq,
        "blocks": [
            [b.block_id, b.ref_count, b.hash and b.hash.hex()[:HASH_DIGITS], b.num_tokens]
            for b in now.blocks
            if b.ref_count or b.hash
        ],
        "requests": {
            r.request_id: {
                "tokens": r.num_tokens,
                "computed": r.num_computed_tokens,
                "status": str(r.status),
                "table": list(r.table),
            }
            for r in now.requests
        },
        "usage": {
            "total": used.total,
            "stored": used.stored,
            "reserved": used.reserved,
            "internal": used.internal,
            "external": used.external,
            "sequenceTokens": used.sequence_tokens,
            "blocksAllocated": used.blocks_allocated,
            "blocksSaved": used.blocks_saved,
        },
    }


def record() -> dict[str, Any]:
    rng = random.Random(7)
    engine = make_engine()
    feed = Feed(engine, model="scripted", block_bytes=1024)
    feed.attach()
    start = feed.collect(snapshot=True).snapshot
    assert start is not None
    frames = [{**json.loads(encode(start)), "wall_time": 0.0}]
    moments = []
    for i in range(90):
        for j in range(rng.randint(1, 3)):
            if rng.random() < 0.35 and len(engine.scheduler.requests) < 12:
                begin = rng.choice([[1] * 9, [2] * 5, [3]])
                prompt = [*begin, *(rng.randint(4, 6) for _ in range(rng.randint(1, 12)))]
                n = rng.choice([1, 1, 4])
                engine.add(make_request(f"r{i}-{j}", prompt, max_tokens=rng.randint(1, 20), n=n))
            if engine.scheduler.requests and rng.random() < 0.05:
                engine.abort(rng.choice(sorted(engine.scheduler.requests)))
            if engine.has_work:
                engine.step()
        delta = feed.collect().delta
        if delta is not None:
            frames.append(json.loads(encode(delta)))
            moments.append(state(engine, delta.seq))
    assert engine.scheduler.counters.preemptions > 0
    return {"frames": frames, "moments": moments}


def test_the_pages_data_is_what_the_feed_makes(pytestconfig: pytest.Config) -> None:
    made = record()
    if pytestconfig.getoption("--write-page-data"):
        FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    assert json.loads(FILE.read_text()) == made
