"""The disk tier: what it gives back, and everything that may go wrong with a disk."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kv_blocks import BLOCK_BYTES, data_of, key_of, save_of

from looseleaf.core.errors import ConfigError
from looseleaf.core.hashing import BlockKey
from looseleaf.tiers import disk as module
from looseleaf.tiers.block_file import MIN_LIMIT, NAME, BlockFile, start_afresh
from looseleaf.tiers.disk import DiskStore

LIMIT = 2 * MIN_LIMIT


def make(folder: Path, limit: int = LIMIT, space: str = '{"model": "m"}') -> DiskStore:
    return DiskStore(folder, limit, space)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = make(tmp_path)
    yield store
    store.close()


def fill(store: DiskStore, numbers: range) -> None:
    for number in numbers:
        store.put(save_of(number), data_of(number))
    store.flush(30)


def found(store: DiskStore, numbers: range) -> list[int]:
    """Those it has. Fails if it gives back anything but what was put."""
    there = []
    for number in numbers:
        if store.has(key_of(number)):
            data = store.get(key_of(number).hash)
            if data is not None:
                assert data == data_of(number)
                there.append(number)
    return there


def test_blocks_are_found_before_and_after_they_are_written(store: DiskStore) -> None:
    store.put(save_of(1), data_of(1))
    assert found(store, range(3)) == [1]
    store.flush(30)
    assert found(store, range(3)) == [1]
    assert len(store) == 1


def test_blocks_survive(tmp_path: Path) -> None:
    first = make(tmp_path)
    fill(first, range(20))
    first.close()
    first.close()
    second = make(tmp_path)
    assert found(second, range(25)) == list(range(20))
    second.close()


def test_spaces_do_not_meet(tmp_path: Path) -> None:
    first, other = make(tmp_path), make(tmp_path, space='{"model": "other"}')
    fill(first, range(3))
    assert found(other, range(3)) == []
    other.close()
    first.close()


def test_the_folder_stays_below_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 8 * 2**20)
    store = make(tmp_path, MIN_LIMIT)
    num_blocks = 2 * MIN_LIMIT // BLOCK_BYTES
    for start in range(0, num_blocks, 100):
        fill(store, range(start, start + 100))
        assert store.num_bytes() <= MIN_LIMIT
        found(store, range(10))  # they are used, so they stay
    there = found(store, range(num_blocks))
    assert there[:10] == list(range(10))
    assert len(there) > num_blocks // 4
    assert store.num_dropped == 0
    store.close()


def test_a_limit_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1000000 bytes, but it needs at least \d+ \(64 MiB\)"):
        make(tmp_path, 1_000_000)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="give a folder that this user may write to"):
        make(tmp_path / "file")


def test_what_comes_too_fast_is_not_kept(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", BLOCK_BYTES - 1)
    store.put(save_of(1), data_of(1))
    assert store.num_dropped == 1
    assert found(store, range(2)) == []


def test_equal_hashes_are_not_believed(store: DiskStore) -> None:
    key = key_of(1)
    fill(store, range(2))
    assert not store.has(BlockKey(key.hash, key.parent, (7, 7)))
    assert not store.has(BlockKey(key.hash, None, key.token_ids))


def test_nothing_is_found_after_clear(store: DiskStore) -> None:
    fill(store, range(5))
    store.put(save_of(5), data_of(5))
    store.clear()
    assert found(store, range(6)) == []
    fill(store, range(2, 3))
    assert found(store, range(6)) == [2]


def test_a_block_of_the_wrong_kind_is_forgotten(store: DiskStore) -> None:
    fill(store, range(2))
    store.forget(key_of(1).hash)
    assert found(store, range(2)) == [0]
    fill(store, range(1, 2))
    assert found(store, range(2)) == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_gives_no_wrong_block(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    import random

    rng = random.Random(seed)
    store = make(tmp_path)
    fill(store, range(40))
    store.close()
    path = tmp_path / NAME
    content = bytearray(path.read_bytes())
    if seed == 0:
        content = bytearray(b"no database at all" * 1000)
    elif seed == 1:
        del content[len(content) // 2 :]
    elif seed == 2:
        content = content[:10]
    else:
        for _ in range(3 ** (seed - 3)):
            content[rng.randrange(100, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    store = make(tmp_path)
    there = found(store, range(40))
    # At the latest after a failure it is made anew, and as good as any.
    for _ in range(2):
        store._resume_time = 0.0
        fill(store, range(100, 110))
    store.close()
    store = make(tmp_path)
    found(store, range(40))
    assert found(store, range(100, 110)) == list(range(100, 110))
    store.close()
    if len(there) < 40:
        assert "damaged" in caplog.text or "could not" in caplog.text


def test_a_file_that_breaks_while_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    store = make(tmp_path)
    fill(store, range(40))
    with (tmp_path / NAME).open("r+b") as file:
        file.write(os.urandom(2**20))
    (tmp_path / (NAME + "-wal")).write_bytes(b"")
    assert len(found(store, range(40))) < 40
    store._resume_time = 0.0
    fill(store, range(50, 60))
    store._resume_time = 0.0
    fill(store, range(50, 60))
    assert found(store, range(50, 60)) == list(range(50, 60))
    store.close()
    assert "could not read" in caplog.text


def test_a_disk_that_breaks_and_cannot_be_mended_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the disk does, who asks gets no exception; when it is well again, it is used."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    store = make(tmp_path)
    fill(store, range(5))

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    damage = sqlite3.DatabaseError("malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    for stand_in in (refuse, lambda *_: (_ for _ in ()).throw(ConfigError("no descriptors left"))):
        with monkeypatch.context() as patch:
            patch.setattr(module, "start_afresh", refuse)
            patch.setattr(module, "BlockFile", stand_in)
            store._failed(damage, "read", store._generation, None)
            assert found(store, range(5)) == []
            assert store.missing([key_of(1).hash]) <= {key_of(1).hash}
            store._resume_time = 0.0
            fill(store, range(5, 8))
            store.clear()
            assert store.num_bytes() >= 0
        store._resume_time = 0.0
        fill(store, range(5))
        assert found(store, range(5)) == list(range(5))
    store.close()
    assert "Read-only file system" in caplog.text
    assert "no descriptors left" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE content SET data = CAST(data AS TEXT) WHERE id = 2",
        "UPDATE block SET tokens = CAST(tokens AS TEXT) WHERE id = 2",
        "UPDATE block SET tokens = 7, parent = 'x' WHERE id = 2",
        "UPDATE block SET tokens = x'0102' WHERE id = 2",
        "UPDATE content SET digest = 5 WHERE id = 2",
        "DELETE FROM content WHERE id = 2",
    ],
)
def test_rows_of_other_types_are_damage(tmp_path: Path, change: str) -> None:
    store = make(tmp_path)
    fill(store, range(4))
    store.close()
    database = sqlite3.connect(tmp_path / NAME)
    with database:
        database.execute(change)
    database.close()
    store = make(tmp_path)
    assert found(store, range(4)) == [0, 2, 3]
    store.close()
    file = BlockFile(tmp_path)
    assert [checked.num_damaged for checked in file.check()][-1] <= 1
    assert [checked.num_damaged for checked in file.check()][-1] == 0
    file.close()


def test_what_somebody_else_removed_is_missed_before_it_counts(store: DiskStore) -> None:
    fill(store, range(6))
    other = BlockFile(store._folder)
    other.remove(store._space, [key_of(2).hash, key_of(4).hash])
    other.close()
    hashes = [key_of(number).hash for number in range(7)]
    assert store.missing(hashes) == {hashes[2], hashes[4], hashes[6]}
    assert [number for number in range(7) if store.has(key_of(number))] == [0, 1, 3, 5]
    fill(store, range(2, 3))
    assert found(store, range(3)) == [0, 1, 2]


def test_nothing_comes_back_after_clear(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    fill(store, range(5))
    store.clear()
    store._next_refresh = 0.0
    assert found(store, range(5)) == []
    other = BlockFile(store._folder)  # something is written, so the file is looked at again
    other.write(store._space, [(save_of(9), data_of(9), time.time())])
    other.close()
    assert found(store, range(10)) == [9]


def test_a_folder_that_is_cleared_while_it_is_used_goes_on(tmp_path: Path) -> None:
    store = make(tmp_path)
    fill(store, range(5))
    file = BlockFile(tmp_path)
    file.clear()
    file.close()
    fill(store, range(10, 15))
    store.close()
    store = make(tmp_path)
    assert found(store, range(20)) == list(range(10, 15))
    store.close()


def test_a_lower_limit_is_kept_from_the_start(tmp_path: Path) -> None:
    store = make(tmp_path, 2 * MIN_LIMIT)
    fill(store, range(1600))  # 64 MB
    assert store.num_bytes() > MIN_LIMIT
    store.close()
    store = make(tmp_path, MIN_LIMIT)
    assert store.num_bytes() <= MIN_LIMIT
    assert len(found(store, range(1600))) > 800
    store.close()


def test_a_good_file_is_not_removed_for_a_bad_one(tmp_path: Path) -> None:
    store = make(tmp_path)
    fill(store, range(3))
    start_afresh(tmp_path, inode=1)  # of a file that is gone
    store.close()
    store = make(tmp_path)
    assert found(store, range(3)) == [0, 1, 2]
    store.close()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {support!r})
from kv_blocks import data_of, save_of
from looseleaf.tiers.disk import DiskStore
store = DiskStore(Path({folder!r}), {limit}, '{{"model": "m"}}')
{setup}
for number in range({start}, {stop}):
    store.put(save_of(number), data_of(number))
    store.make_room(30)
    if number % 10 == 0:
        store.flush(30)
        print(number, len(store), flush=True)
store.flush(30)
store.close()
print("done", store.num_dropped, len(store), flush=True)
"""


def writer(folder: Path, start: int, stop: int, setup: str = "") -> subprocess.Popen[str]:
    script = WRITER.format(
        support=str(Path(__file__).parents[1] / "support"),
        folder=str(folder),
        limit=LIMIT,
        start=start,
        stop=stop,
        setup=setup,
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3])
def test_a_writer_that_is_killed_leaves_whole_blocks(tmp_path: Path, delay: float) -> None:
    process = writer(tmp_path, 0, 100_000)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()  # it is at work
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    store = make(tmp_path)
    there = found(store, range(3000))
    assert there[:31] == list(range(31))
    assert there == list(range(len(there)))
    assert store.num_damaged == 0
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= before + 2**20


def test_two_processes_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    store = make(tmp_path)
    processes = [writer(tmp_path, 0, 150), writer(tmp_path, 100, 250)]
    fill(store, range(200, 300))
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert output.splitlines()[-1].startswith("done 0 ")
    assert found(store, range(300)) == list(range(300))
    store.close()


def test_a_full_disk_costs_nothing_but_the_blocks(tmp_path: Path) -> None:
    setup = (
        "import resource, signal, looseleaf.tiers.disk as d\n"
        "d.RETRY_SECONDS = 0.0\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))"
    )
    process = writer(tmp_path, 0, 100, setup)
    output, _ = process.communicate(timeout=60)
    last = output.splitlines()[-1].split()
    assert last[0] == "done"
    assert int(last[1]) > 0
    store = make(tmp_path)
    assert len(found(store, range(100))) == int(last[2]) < 100
    fill(store, range(100, 150))
    assert found(store, range(100, 150)) == list(range(100, 150))
    store.close()
