"""`looseleaf studio`: made-up chats, recordings, and what is refused."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from looseleaf.core.invariants import check
from looseleaf.server.studio import STATIC
from looseleaf.studio.export import PLACE, TEMPLATE
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import Snapshot, decode, encode
from looseleaf.studio.recording import Recorder
from looseleaf.studio.showcase import Showcase, Traffic


def address(process: Any) -> str:
    line = process.stdout.readline().decode()
    assert line.startswith("the studio is at http://127.0.0.1:"), line
    return str(line.split()[-1])


def end(process: Any) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def recording(path: Path) -> list[bytes]:
    showcase = Showcase(Traffic(), seed=1)
    feed = Feed(showcase.engine)
    feed.attach()
    first = feed.collect(snapshot=True).snapshot
    assert first is not None
    frames = [encode(first)]
    for _ in range(10):
        showcase.add()
        showcase.step()
        delta = feed.collect().delta
        assert delta is not None
        frames.append(encode(delta))
    with Recorder(path) as recorder:
        for frame in frames:
            recorder.write(frame)
    return frames


def test_made_up_chats_are_shown_live(start: Any) -> None:
    process = start("studio", "--port", "0", "--rate", "50")
    url = address(process)
    with httpx.Client(base_url=url, timeout=20, verify=False) as client:
        assert client.get("about").json()["source"] == "live"
        assert client.get("../").status_code == 307
        with client.stream("GET", "feed") as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            first = decode(next(lines).removeprefix("data: ").encode())
            assert isinstance(first, Snapshot)
            assert first.num_blocks == 640
            for _ in range(3):
                assert json.loads(next(lines).removeprefix("data: "))["kind"] == "delta"
    end(process)


@pytest.mark.parametrize("name", ["run.ndjson", "run.ndjson.gz"])
def test_a_recording_is_played(start: Any, tmp_path: Path, name: str) -> None:
    frames = recording(tmp_path / name)
    process = start("studio", str(tmp_path / name), "--port", "0")
    url = address(process)
    with httpx.Client(base_url=url, timeout=20, verify=False) as client:
        assert client.get("about").json()["source"] == "recording"
        assert client.get("recording").content.splitlines() == frames
        assert client.get("feed").status_code == 404
    end(process)


def test_what_cannot_be_shown_is_refused(call: Any, tmp_path: Path) -> None:
    call("studio", str(tmp_path / "none")).check_refused("cannot read", "none")
    (tmp_path / "empty").write_text("")
    call("studio", str(tmp_path / "empty")).check_refused("empty: nothing was recorded")
    (tmp_path / "other").write_text("hello\n")
    call("studio", str(tmp_path / "other")).check_refused("no recording", "--studio-record")
    call("studio", "--num-blocks", "3").check_refused("--num-blocks is 3", "at least 16")
    call("studio", "--rate", "0").check_refused("--rate is 0")
    call("studio", "--port", "70000").check_refused("70000", "65535")
    call("serve", "--no-studio", "--studio-record", "x").check_refused("leave out --no-studio")


def test_made_up_chats_keep_the_books() -> None:
    """More of them than there is room for: the invariants hold, and everything happens that there
    is to see."""
    showcase = Showcase(Traffic(num_blocks=96, max_num_seqs=16), seed=2)
    scheduler = showcase.engine.scheduler
    for i in range(600):
        if i % 5 == 0 and len(scheduler.waiting) < 24:
            showcase.add()
        if scheduler.has_work:
            showcase.step()
        if i % 20 == 0:
            check(scheduler)
    assert scheduler.counters.preemptions
    assert scheduler.counters.prefix_hits
    assert scheduler.allocator.num_copies


def test_a_moment_is_exported(call: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "run.ndjson", tmp_path / "page.html"
    frames = recording(path)
    if (STATIC / TEMPLATE).is_file():
        outcome = call("studio", str(path), "--export", str(page))
        assert outcome.status == 0, outcome.err
        assert f"{len(frames)} frames" in outcome.out
        text = page.read_text()
        assert "Content-Security-Policy" in text
        assert "http://" not in text.partition(PLACE.decode()[:40])[2].partition("</script>")[0]
        assert json.loads(text.partition('id="embedded">')[2].partition("</script>")[0])["frames"]
    else:
        call("studio", str(path), "--export", str(page)).check_refused("make web")
    call("studio", "--export", str(page)).check_refused("needs a RECORDING")
    call("studio", str(path), "--at", "1").check_refused("needs --export")
    call("studio", str(path), "--export", "x", "--at", "99").check_refused("--at is 99")
    call("studio", str(path), "--export", "x", "--history", "-1").check_refused("--history is -1")
