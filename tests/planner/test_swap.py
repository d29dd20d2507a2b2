"""The engine's own tiers on the virtual clock: what goes to the swap space takes room and time."""

from typing import Any

import pytest
from planning import linear_times

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.plan import Plan, run_plan
from looseleaf.planner.replicas import run_replicas
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.tiers.block_file import LOG_BYTES
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

BLOCK = 1_000_000
CROWD = Trace(tuple(TraceRequest(0.02 * i, 100, 300) for i in range(24)), (), True, 16)
TURNS = Trace(
    tuple(
        TraceRequest(0.5 * i + 20 * turn, 300, 4, tuple(range(20 * i, 20 * i + 18)))
        for turn in range(2)
        for i in range(10)
    ),
    (),
    True,
    16,
)


def planned(
    trace: Trace,
    bandwidth: float | None = 1e9,
    blocks: int = 60,
    disk: DiskSpeed = ASSUMED,
    **asked: Any,
) -> Plan:
    settings = EngineSettings(admission_headroom=0, **asked)
    memory = MemoryPlan(blocks, 16, BLOCK, 16 * blocks)
    return run_plan(
        trace, settings, memory, linear_times(), swap_bandwidth=bandwidth, disk_speed=disk
    )


def test_what_gave_way_is_loaded_and_not_computed_again() -> None:
    plain = planned(CROWD)
    assert plain.tiers is None
    assert plain.summary.preemptions > 20
    assert plain.summary.recomputed_tokens > 3000
    swapped = planned(CROWD, swap_space="1GiB", preemption_mode="swap")
    assert swapped.tiers is not None
    assert swapped.summary.preemptions > 20
    assert swapped.tiers.loaded_from_host > 200
    assert swapped.summary.recomputed_tokens < plain.summary.recomputed_tokens / 10
    assert swapped.summary.output_tokens == plain.summary.output_tokens == 7200
    assert swapped.tiers.host_bytes % BLOCK == 0


def test_transfers_take_their_time() -> None:
    fast, slow = (
        planned(CROWD, bandwidth, swap_space="1GiB", preemption_mode="swap")
        for bandwidth in (1e12, 1e9)
    )
    assert fast.tiers is not None
    assert slow.tiers is not None
    moved = slow.tiers.saved + slow.tiers.loaded_from_host
    assert moved > 1000
    # A millisecond for each block, while nothing else goes on.
    taken = slow.summary.busy - fast.summary.busy
    assert taken == pytest.approx(moved * 0.001, rel=0.25)


def test_prefixes_that_were_evicted_are_found_where_there_is_room_for_them() -> None:
    """Ten prompts of 18 full blocks, twice, in a pool for three of them."""
    hits = [
        planned(TURNS, swap_space=space, preemption_mode=mode).summary.prefix_hits
        for space, mode in ((None, "auto"), (30 * BLOCK, "swap"), (400 * BLOCK, "swap"))
    ]
    assert hits[2] == 10 * 288
    assert hits[0] < 2 * 288
    assert hits[1] < hits[2] / 2


def test_the_swap_space_is_never_exceeded() -> None:
    plan = planned(TURNS, swap_space=30 * BLOCK + 1)
    assert plan.tiers is not None
    assert plan.tiers.host_bytes == 30 * BLOCK


def test_what_takes_longer_than_computing_is_computed() -> None:
    loaded = []
    for bandwidth in (1e10, 1e8):
        plan = planned(TURNS, bandwidth, swap_space="1GiB")
        assert plan.tiers is not None
        loaded.append(plan.tiers.loaded_from_host)
    assert loaded[0] > 100
    # It is tried now and then, for the case that it has become faster.
    assert loaded[1] < loaded[0] / 2


def test_each_replica_has_a_swap_space() -> None:
    settings = EngineSettings(admission_headroom=0, swap_space="1GiB", preemption_mode="swap")
    memory = MemoryPlan(60, 16, BLOCK, 960)
    one, two = (
        run_replicas(
            CROWD,
            settings,
            memory,
            linear_times(),
            num_replicas=num,
            routing="round-robin",
            swap_bandwidth=1e9,
        )
        for num in (1, 2)
    )
    alone = planned(CROWD, swap_space="1GiB", preemption_mode="swap")
    assert (one.tiers, one.summary) == (alone.tiers, alone.summary)
    assert one.tiers is not None
    assert two.tiers is not None
    assert 0 < two.tiers.loaded_from_host < one.tiers.loaded_from_host
    assert two.summary.output_tokens == 7200


def test_the_same_every_time() -> None:
    one, other = (planned(CROWD, swap_space="1GiB") for _ in range(2))
    assert one.summary == other.summary
    assert one.result.outcomes == other.result.outcomes


FAST = DiskSpeed(1e10, 1e10)


def test_prefixes_are_found_on_the_disk() -> None:
    """As many as in memory of the same size, for which the pool is emptied a second time."""
    hits = []
    for size in (60 * BLOCK, 400 * BLOCK):
        disk = planned(TURNS, 1e10, disk=FAST, kv_disk="x", kv_disk_size=size + LOG_BYTES)
        host = planned(TURNS, 1e10, swap_space=size)
        assert disk.tiers is not None
        assert host.tiers is not None
        assert disk.tiers.loaded_from_host == 0
        assert disk.tiers.disk_bytes == host.tiers.host_bytes <= size
        assert abs(disk.tiers.loaded_from_disk - host.tiers.loaded_from_host) <= 2
        hits.append(disk.summary.prefix_hits)
    assert hits[1] == 10 * 288
    assert hits[0] < hits[1] / 2


def test_what_leaves_the_swap_space_goes_to_the_disk() -> None:
    """The latest used come back first: they are found in memory, the others on the disk."""
    turns = TURNS.requests
    back = [r._replace(arrival=29.5 - 0.5 * i) for i, r in enumerate(turns[:10])]
    trace = TURNS._replace(requests=(*turns[:10], *reversed(back)))
    plan = planned(trace, disk=FAST, swap_space=100 * BLOCK, kv_disk="x", preemption_mode="swap")
    assert plan.tiers is not None
    assert plan.summary.prefix_hits == 10 * 288
    assert plan.tiers.loaded_from_host > 10
    assert plan.tiers.loaded_from_disk > 10
    assert plan.tiers.host_bytes == 100 * BLOCK


def test_reading_takes_its_time_and_writing_happens_meanwhile() -> None:
    asked = {"swap_space": BLOCK, "kv_disk": "x", "preemption_mode": "swap"}
    fast, reads, writes = (
        planned(TURNS, 1e12, disk=speed, **asked)
        for speed in (DiskSpeed(1e12, 1e12), DiskSpeed(1e9, 1e12), DiskSpeed(1e12, 1e9))
    )
    assert reads.tiers is not None
    assert reads.tiers.loaded_from_disk > 100
    taken = reads.summary.busy - fast.summary.busy
    assert taken == pytest.approx(reads.tiers.loaded_from_disk * 0.001, rel=0.05)
    assert writes.summary == fast.summary


def test_a_disk_that_is_too_slow_does_not_take_all_and_is_not_read() -> None:
    slow = planned(TURNS, 1e10, disk=DiskSpeed(1e7, 1e6), kv_disk="x")
    none = planned(TURNS, 1e10)
    assert slow.tiers is not None
    # 256 MB may wait to be written: one block a second leaves.
    assert slow.tiers.disk_bytes < 60 * BLOCK
    assert slow.tiers.loaded_from_disk < 60
    assert slow.summary.prefix_hits < 10 * 288
    assert slow.summary.prefix_hits >= none.summary.prefix_hits


def test_the_speed_must_be_known() -> None:
    with pytest.raises(ConfigError, match="--swap-bandwidth"):
        planned(CROWD, None, swap_space="1GiB")
    with pytest.raises(ConfigError, match="swap_bandwidth is -1, but"):
        planned(CROWD, -1e9)
    with pytest.raises(ConfigError, match="--swap-bandwidth"):
        planned(CROWD, None, kv_disk="x")
    with pytest.raises(ConfigError, match="needs at least"):
        planned(CROWD, kv_disk="x", kv_disk_size="1MiB")


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("rtx-4090", 25.6), ("h100", 51.2), ("epyc-9654", 184.32)]
)
def test_the_table_knows_links(name: str, gigabytes: float) -> None:
    assert load_hardware(name).swap_bandwidth == pytest.approx(gigabytes * 1e9)
