"""What every worker does: jobs in on standard input, one JSON line with the times out."""

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from peers.protocol import Job, Request, Spans, check_complete


class Engine(Protocol):
    """A peer with its model loaded, room for every job of the request, and no job to do."""

    def warm(self, job: Job) -> None:
        """Compute the job's prefix, and keep of it what can be kept."""

    def run(self, job: Job, spans: Spans, start: float) -> None:
        """Do a job to its end, saying with `perf_counter() - start` when tokens arrived."""


def main(load: Callable[[Request], Engine]) -> None:
    """Answer the request on standard input. Standard output gets nothing but the answer, whatever
    the peer's libraries print there."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = Request.from_json(json.load(sys.stdin))
    engine = load(request)
    for job in request.jobs:
        if job.prefix:
            engine.warm(job)
        spans = Spans()
        start = perf_counter()
        engine.run(job, spans, start)
        wall = perf_counter() - start
        check_complete(job, spans.all())
    answer = {"wall_s": wall, "spans": spans.all(), "peak_rss_mib": peak_memory_mib()}
    print(json.dumps(answer), file=output, flush=True)
    # Some peers crash or wait for ever when their threads are taken down.
    os._exit(0)


def peak_memory_mib() -> float:
    """The most physical memory that this process has had at once."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how much memory a process had")
