"""The planner's disk: what it holds, against a `DiskStore`, and when."""

import random
from pathlib import Path

from kv_blocks import BLOCK_BYTES, data_of, key_of, save_of

from looseleaf.planner.clock import VirtualClock
from looseleaf.tiers.block_file import MIN_LIMIT
from looseleaf.tiers.disk import DiskStore
from looseleaf.tiers.virtual_disk import DiskSpeed, VirtualDisk

MB = 10**6


def virtual(blocks: int, *, queue: int = 100, read: float = MB, write: float = MB) -> VirtualDisk:
    return VirtualDisk(blocks * MB, queue * MB, MB, DiskSpeed(read, write), VirtualClock())


def clock_of(disk: VirtualDisk) -> VirtualClock:
    assert isinstance(disk._clock, VirtualClock)
    return disk._clock


def test_it_finds_what_a_real_one_finds(tmp_path: Path) -> None:
    clock = VirtualClock()
    ours = VirtualDisk(10**9, 10**9, BLOCK_BYTES, DiskSpeed(1e12, 1e12), clock)
    real = DiskStore(tmp_path, 2 * MIN_LIMIT, "m")
    rng = random.Random(1)
    for _ in range(300):
        number = rng.randrange(40)
        match rng.choice(["put", "get", "has", "missing", "forget"]):
            case "put":
                ours.put(save_of(number), b"")
                real.put(save_of(number), data_of(number))
            case "get":
                found = (disk.get(key_of(number).hash) is not None for disk in (ours, real))
                assert len(set(found)) == 1
            case "has":
                assert ours.has(key_of(number)) == real.has(key_of(number))
            case "missing":
                hashes = [key_of(number + i).hash for i in range(5)]
                assert ours.missing(hashes) == real.missing(hashes)
            case "forget" if rng.random() < 0.2:
                number += 40  # a real one never finds again what it was told to forget
                ours.forget(key_of(number).hash)
                real.forget(key_of(number).hash)
        clock.now += 1e-6
    ours.clear()
    assert not any(ours.has(key_of(number)) for number in range(40))
    real.close()


def test_reads_are_waited_for_and_writes_are_not() -> None:
    disk = virtual(10, read=2 * MB)
    clock = clock_of(disk)
    for number in range(3):
        disk.put(save_of(number), b"")
    assert (clock.now, disk.num_bytes()) == (0.0, 0)
    assert disk.get(save_of(1).hash) == b""  # still in memory
    assert clock.now == 0.0
    clock.now = 2.0
    assert disk.num_bytes() == 2 * MB
    assert disk.get(save_of(1).hash) == b""
    assert clock.now == 2.5
    disk.close(0.1)
    assert clock.now == 2.6
    disk.close(10)
    assert (clock.now, disk.num_bytes()) == (3.0, 3 * MB)


def test_the_longest_unused_leaves_and_what_comes_too_fast_is_not_taken() -> None:
    disk = virtual(3, queue=4)
    clock = clock_of(disk)
    for number in range(6):
        disk.put(save_of(number), b"")
    assert disk.num_dropped == 2
    clock.now = 3.0
    assert disk.get(save_of(0).hash) is not None
    clock.now = 10.0
    assert disk.missing([save_of(number).hash for number in range(6)]) == {
        save_of(number).hash for number in (1, 4, 5)
    }
    disk.put(save_of(2), b"")  # used again, and not written again
    disk.put(save_of(7), b"")
    clock.now = 11.0
    assert [number for number in range(8) if disk.has(key_of(number))] == [0, 2, 7]
    assert disk.num_bytes() == 3 * MB
