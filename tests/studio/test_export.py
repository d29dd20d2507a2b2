"""Moments of a recording as pages, and recordings that are kept within a limit."""

import json
from pathlib import Path
from typing import Any

import pytest

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.meter import Meter
from looseleaf.studio.export import PLACE, TEMPLATE, moment_of, payload, self_contained
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import Delta, Frame, Snapshot, decode, encode
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import Recorder, frames_of, set_aside
from looseleaf.studio.ring import Ring
from looseleaf.studio.showcase import Showcase, Traffic


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """Made-up chats for some 20 seconds of a clock that is not the real one."""
    showcase = Showcase(Traffic(num_blocks=96, max_num_seqs=12), seed=3)
    seconds = 100.0

    def clock() -> float:
        nonlocal seconds
        seconds += 0.004
        return seconds

    showcase.engine.clock = clock
    misses = Meter(showcase.engine).misses
    feed = Feed(showcase.engine, model="made up", block_bytes=1024, misses=misses)
    feed.attach()
    first = feed.collect(snapshot=True).snapshot
    assert first is not None
    frames = [encode(first)]
    for i in range(450):
        if i % 5 == 0 and len(showcase.engine.scheduler.waiting) < 8:
            showcase.add()
        showcase.step()
        delta = feed.collect().delta
        assert delta is not None
        frames.append(encode(delta))
    path = tmp_path_factory.mktemp("studio") / "run.ndjson"
    path.write_bytes(b"".join(frame + b"\n" for frame in frames))
    return path, frames


def final(frames: list[Frame]) -> Picture:
    first, *rest = frames
    assert isinstance(first, Snapshot)
    picture = Picture(first)
    for frame in rest:
        picture.apply(frame)
    return picture


def same(one: Picture, other: Picture) -> None:
    for name in ("seq", "time", "model", "block_size", "block_bytes", "num_blocks"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("blocks", "requests", "counters", "tiers"):
        assert getattr(one, name) == getattr(other, name), name
    tables = [{n: blocks for n, blocks in p.tables.items() if blocks} for p in (one, other)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(("at", "history"), [(None, 5.0), (None, 0.0), (3.0, 1.0), (3.0, 1e9)])
def test_a_moment_is_the_one_of_the_recording(
    recorded: tuple[Path, list[bytes]], at: float | None, history: float
) -> None:
    path, lines = recorded
    everything = [decode(line) for line in lines]
    end = everything[-1].time if at is None else everything[0].time + at
    until = [frame for frame in everything if frame.time <= end]
    moment = moment_of(path, at, history)
    data = json.loads(payload(moment, state="shelf"))
    assert (data["kind"], data["state"]) == ("moment", "shelf")
    told = [decode(json.dumps(frame).encode()) for frame in data["frames"]]
    same(final(told), final(until))
    assert told[-1].time - told[0].time >= min(history, until[-1].time - everything[0].time) - 0.1
    assert told[-1].time - told[0].time <= history + 0.1
    # Who ended is told once: before the first frame, or in one of them.
    ended = {row["n"]: row for row in data["ended"]}
    later = {r.number for f in told[1:] for r in f.requests if r.status == "finished"}
    all_ended = {
        r.number
        for f in until
        if isinstance(f, Delta)
        for r in f.requests
        if r.status == "finished"
    }
    assert ended.keys() | later == all_ended
    assert not ended.keys() & later
    for row in ended.values():
        assert row["arrival"] <= row["ended"] <= told[0].time
        assert row["id"]
        assert row["reason"] in ("length", "stop", "abort")


def test_reasons_for_misses_are_in_the_feed(recorded: tuple[Path, list[bytes]]) -> None:
    frames = [decode(line) for line in recorded[1]]
    counters = final(frames).counters
    missed = counters.misses
    assert isinstance(missed, dict)
    assert {"first_seen", "diverged", "evicted"} <= set(missed)
    assert all(count > 0 for count in missed.values())


def test_a_moment_that_is_not_there(recorded: tuple[Path, list[bytes]]) -> None:
    for at, words in ((1e6, "ends after"), (-1.0, "is -1")):
        with pytest.raises(LooseleafError, match=words):
            moment_of(recorded[0], at)


def test_data_cannot_end_its_element(tmp_path: Path) -> None:
    with pytest.raises(LooseleafError, match="make web"):
        self_contained(tmp_path, b"{}")
    (tmp_path / TEMPLATE).write_bytes(b"<body>" + PLACE + b"<script>1</script></body>")
    data = json.dumps({"kind": "lesson", "text": "</script><!-- \\u003c"}).encode()
    page = self_contained(tmp_path, data)
    assert page.count(b"</script>") == 2
    assert b"<!--" not in page
    told = page.partition(b'id="embedded">')[2].partition(b"</script>")[0]
    assert json.loads(told) == json.loads(data)
    (tmp_path / TEMPLATE).write_bytes(b"<body></body>")
    with pytest.raises(LooseleafError, match="no place"):
        self_contained(tmp_path, data)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("run.ndjson", "run.before.ndjson"),
        ("run.ndjson.gz", "run.before.ndjson.gz"),
        ("run", "run.before"),
    ],
)
def test_a_recording_that_is_full_is_set_aside(
    recorded: tuple[Path, list[bytes]], tmp_path: Path, name: str, before: str
) -> None:
    _, lines = recorded
    path = tmp_path / name
    limit = 60_000
    for _ in range(2):
        with Recorder(path, limit) as recorder:
            for line in lines:
                recorder.write(line)
                if recorder.full:
                    break
            assert recorder.full
        assert set_aside(path) == tmp_path / before
        assert not path.exists()
        assert limit / 2 <= (tmp_path / before).stat().st_size < limit
    assert len(list(frames_of(tmp_path / before))) > 10


def test_a_snapshot_larger_than_the_limit_is_not_the_end_of_a_recording(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.ndjson", 100) as recorder:
        recorder.write(b"x" * 1000)
        assert not recorder.full
        recorder.write(b"x" * 10)
        assert not recorder.full
        recorder.write(b"x" * 1000)
        assert recorder.full


def test_a_ring_keeps_the_newest(recorded: tuple[Path, list[bytes]]) -> None:
    _, lines = recorded
    ring = Ring(max_bytes=60_000)
    assert ring.frames() == []
    picture: Picture | None = None
    for line in lines:
        frame = decode(line)
        if picture is None:
            assert isinstance(frame, Snapshot)
            picture = Picture(frame)
        else:
            picture.apply(frame)
            ring.add(line)
        if ring.wants_snapshot:
            ring.begin(encode(picture.snapshot()))
        assert ring.num_bytes < 90_000
        if frame.seq % 100 == 0:
            kept: list[Any] = [decode(one) for one in ring.frames()]
            same(final(kept), picture)
    assert picture is not None
    assert ring.num_bytes > 50_000
    kept = [decode(one) for one in ring.frames()]
    assert kept[0].seq > 0
    assert len(kept) < len(lines)
    same(final(kept), picture)
    ring.clear()
    assert ring.wants_snapshot
