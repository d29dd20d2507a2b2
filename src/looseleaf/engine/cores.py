"""How many threads may compute at once without getting into each other's way."""

import os
from math import ceil
from pathlib import Path

SYSTEM = Path("/sys")


def physical_cores(system: Path = SYSTEM) -> int:
    """The cores behind the processors that this process may use, at most what its control group
    may use of them. Two hardware threads of one core share its arithmetic units, so they count
    once. At least 1."""
    usable = os.sched_getaffinity(0)
    cores = {_siblings(system, processor) for processor in usable}
    quota = _quota(system)
    return max(1, min(len(cores), ceil(quota) if quota is not None else len(cores)))


def _siblings(system: Path, processor: int) -> str:
    """The hardware threads of a processor's core, or the processor alone if nobody tells."""
    topology = system / f"devices/system/cpu/cpu{processor}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return str(processor)


def _quota(system: Path) -> float | None:
    """Processors' worth of time per period, for control groups of either version; None: all."""
    try:
        limit, period = (system / "fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (system / "fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()
            period = (system / "fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not limit.isdigit() or int(limit) == 0 or not period.isdigit() or int(period) == 0:
        return None
    return int(limit) / int(period)
