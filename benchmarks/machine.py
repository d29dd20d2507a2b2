"""What a benchmark ran on; recorded with every result."""

import os
import platform
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
