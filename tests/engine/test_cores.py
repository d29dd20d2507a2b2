import os
from pathlib import Path

import pytest

from looseleaf.engine.cores import physical_cores


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four processors that are two cores, all of which may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for processor, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = tmp_path / f"devices/system/cpu/cpu{processor}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    (tmp_path / "fs/cgroup/cpu").mkdir(parents=True)
    return tmp_path


def test_hardware_threads_of_a_core_count_once(system: Path) -> None:
    assert physical_cores(system) == 2


def test_a_process_bound_to_one_processor_has_one_core(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert physical_cores(system) == 1


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("?", 2)]
)
def test_the_quota_of_a_control_group(system: Path, text: str, cores: int) -> None:
    (system / "fs/cgroup/cpu.max").write_text(text + "\n")
    assert physical_cores(system) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 2), ("100000", 1)])
def test_the_quota_of_an_old_control_group(system: Path, quota: str, cores: int) -> None:
    (system / "fs/cgroup/cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (system / "fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    assert physical_cores(system) == cores


def test_where_nobody_tells_every_processor_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert physical_cores(tmp_path) == 3
