"""What a benchmark ran on, and how much memory it took."""

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Recorded with every result: figures of different machines do not compare."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": processor(), "cores": usable_cores(), "memory_gib": round(total / 2**30, 1)}


def processor() -> str:
    """The processor's name, as far as the system tells."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def reset_peak_memory() -> None:
    """Count the peak from here on; where the system does not allow that, it counts from the
    process's start (`man 5 proc`, clear_refs)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mib() -> float:
    """The most physical memory that this process has had at once."""
    with suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
