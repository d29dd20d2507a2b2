"""`looseleaf serve` as a process of its own, on a port that it picks."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODEL = "smollm2-135m"
SECONDS = 120
"""In which a server starts, answers or ends."""


@dataclass(frozen=True)
class Served:
    """`url` has no path. `log` is all that the process wrote to its standard error."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path


@contextmanager
def serving(log: Path, *options: str) -> Iterator[Served]:
    """SmolLM2, from when it is served; whatever still runs at the end is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "looseleaf", "serve", MODEL, "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        yield Served(process, _url(process, log), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(SECONDS)


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    said = re.compile(rf"serving {re.escape(MODEL)} at (http://\S+)/v1; KV cache: ")
    while (found := said.search(log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return found[1]
