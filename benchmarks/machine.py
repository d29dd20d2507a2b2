"""What a benchmark ran on; recorded with every result."""

import os
import platform
import time
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
        processor = names[0] if names else processor
    except OSError:
        pass
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


class Others:
    """What other programs, and a hypervisor's other guests, take of all processors."""

    def __init__(self) -> None:
        self._total, self._busy, self._own = _used()

    def share(self) -> float:
        """Since this was last asked, or made; 0 where the system does not tell."""
        total, busy, own = _used()
        spent, taken = total - self._total, (busy - self._busy) - (own - self._own)
        self._total, self._busy, self._own = total, busy, own
        return max(0.0, taken / spent) if spent else 0.0


def _used() -> tuple[float, float, float]:
    """Seconds of all processors since the start of the system: all, those not idle, and those of
    this process. See proc_stat(5)."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0, 0.0, 0.0
    user, nice, system, idle, waiting, *rest = (
        int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9]
    )
    busy = user + nice + system + sum(rest)
    return busy + idle + waiting, busy, time.process_time()
