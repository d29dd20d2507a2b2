"""Two allocators on the same arrivals: who comes is the same, and so is the time."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from bookkeeping import Bench, make_request

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.engine import Engine
from looseleaf.studio.arrivals import Arrivals, Chats, made_up, recorded
from looseleaf.studio.compare import Setup, Side, compare
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import Snapshot, decode, encode
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import Recorder


class Watched:
    """What the lines of a comparison come to."""

    def __init__(self, setup: Setup) -> None:
        self.setup: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.pictures: dict[str, Picture] = {}
        self.peak = dict.fromkeys("ab", 0)
        self.finished = dict.fromkeys("ab", 0)
        self.arrived: dict[str, dict[str, float]] = {"a": {}, "b": {}}
        for line in compare(setup):
            told = json.loads(line)
            if told["kind"] in ("setup", "end"):
                setattr(self, told["kind"], told)
            else:
                self._take(told.pop("side"), json.dumps(told).encode())

    def _take(self, side: str, frame_line: bytes) -> None:
        frame = decode(frame_line)
        if isinstance(frame, Snapshot):
            assert side not in self.pictures
            self.pictures[side] = Picture(frame)
            return
        picture = self.pictures[side]
        picture.apply(frame)
        assert abs(picture.time - self.pictures["ab".replace(side, "")].time) < 2
        for request in frame.requests:
            self.finished[side] += request.status == "finished"
            if isinstance(request.id, str):
                assert isinstance(request.arrival_time, float)
                self.arrived[side][request.id] = request.arrival_time
        running = sum(r.status == "running" for r in picture.requests.values())
        self.peak[side] = max(self.peak[side], running)


def test_paged_runs_more_than_contiguous_on_the_same_arrivals() -> None:
    seen = Watched(Setup(seconds=15, rate=4.0, num_blocks=256))
    assert (seen.setup["a"], seen.setup["b"]) == ("paged", "contiguous-max")
    assert (seen.setup["longest"], seen.setup["num_blocks"]) == (1024, 256)
    # Contiguous: as many regions of 64 blocks as the pool has.
    assert seen.peak["b"] == 4
    assert seen.peak["a"] > 2 * seen.peak["b"]
    assert seen.finished["a"] > 1.5 * seen.finished["b"]
    assert seen.arrived["a"] == seen.arrived["b"]
    assert len(seen.arrived["a"]) >= seen.setup["requests"]
    assert seen.end["refused"] == {"a": 0, "b": 0}
    hits = {side: picture.counters.prefix_hits for side, picture in seen.pictures.items()}
    assert hits["b"] == 0
    assert hits["a"] > seen.pictures["a"].counters.prefix_queries / 2


def test_the_same_allocator_twice_is_the_same_twice() -> None:
    seen = Watched(Setup(allocator="paged", seconds=6, seed=3))
    one, other = seen.pictures["a"], seen.pictures["b"]
    assert one.blocks.keys() == other.blocks.keys()
    assert one.tables == other.tables
    assert one.counters == other.counters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allocator", "best"),
        ("seconds", 601),
        ("rate", 0),
        ("num_blocks", 63),
        ("max_num_seqs", 0),
        ("seed", -1),
    ],
)
def test_what_is_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(LooseleafError, match=f"^{field} is out of range: it must be "):
        Setup(**{field: value}).check()


def test_made_up_chats_follow_from_the_seed_and_go_on_as_they_were_answered() -> None:
    def make(seed: int) -> Arrivals:
        return made_up(Chats(), 60, seed)

    assert make(1) == make(1)
    assert make(1) != make(2)
    requests = make(1).requests
    times = [request.time for request in requests]
    assert times == sorted(times)
    assert all(0 < time < 60 for time in times)
    for request in requests:
        text = request.tokens()
        assert len(text) == request.num_prompt_tokens + request.num_output_tokens <= 1024
    whole = {tuple(request.tokens()) for request in requests}
    prompts = [tuple(r.tokens()[: r.num_prompt_tokens]) for r in requests]
    follows = [p for p in prompts if any(p[: len(w)] == w for w in whole)]
    assert len(follows) > 10  # turns whose beginning is a whole turn before them


def test_a_recordings_requests_come_again_and_share_what_they_shared(tmp_path: Path) -> None:
    path = tmp_path / "run.ndjson.gz"
    rng = random.Random(4)
    bench = Bench(num_blocks=96, block_size=4, max_model_len=120)
    bench.tables.events = None
    bench.tables.pool.events = None
    engine = Engine(bench.scheduler, bench.executor)
    sent: dict[str, tuple[int, int, int]] = {}
    with Recorder(path) as recorder:
        engine.add(make_request("before", 5, max_tokens=3))
        feed = Feed(engine)
        feed.attach()
        recorder.write(encode(feed.collect(snapshot=True).snapshot))
        for i in range(60):
            if i % 3 == 0:
                prompt = [*range(1, 33), *rng.choices(range(40, 50), k=rng.randint(1, 9))]
                length, n = rng.randint(3, 20), rng.choice([1, 1, 3])
                sent[f"r{i}"] = (len(prompt), length, n)
                engine.add(make_request(f"r{i}", prompt, max_tokens=length, n=n))
            engine.step()
            recorder.write(encode(feed.collect().delta))
        while engine.has_work:
            engine.step()
            recorder.write(encode(feed.collect().delta))
    arrivals = recorded(path)
    told = [(r.num_prompt_tokens, r.num_output_tokens, r.num_samples) for r in arrivals.requests]
    assert sorted(told) == sorted(sent.values())
    assert (arrivals.num_blocks, arrivals.block_size) == (96, 4)
    assert arrivals.longest == max(p + o for p, o, _ in sent.values())
    beginnings = {tuple(r.tokens()[:32]) for r in arrivals.requests}
    assert len(beginnings) == 1
    side = Side("paged", arrivals, 16)
    while not side.done:
        side.advance(side.now + 10)
    counters = side.engine.scheduler.counters
    assert counters.prefix_hits >= 32 * (len(sent) - 1)
    assert Watched(Setup(recording=str(path), seconds=30)).finished["a"] == sum(
        n for _, _, n in sent.values()
    )


def test_a_recording_in_which_nobody_came_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "idle.ndjson"
    bench = Bench()
    bench.tables.events = None
    feed = Feed(Engine(bench.scheduler, bench.executor))
    path.write_bytes(encode(feed.collect(snapshot=True).snapshot) + b"\n")
    with pytest.raises(LooseleafError, match="no request that came"):
        recorded(path)
