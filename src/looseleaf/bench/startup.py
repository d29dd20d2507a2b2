"""From the start of a process to its first token."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from looseleaf.bench.progress import Advance
from looseleaf.core.errors import LooseleafError


class Start(NamedTuple):
    """Seconds from the start of a process to its first byte of output, and to its end."""

    first_output: float
    end: float


def measure_startup(command: Sequence[str], rounds: int, advance: Advance) -> dict[str, Any]:
    """Start `command`, which prints what it generates, once and then `rounds` times.

    `first_run_s` is of the first start, which may have to read files that are in no cache yet, and
    fill what caches there are; `first_token_s` and `end_s` are medians of the others.
    """
    starts = []
    for _ in range(1 + rounds):
        starts.append(start(command))
        advance()
    first, *others = starts
    return {
        "first_token_s": median(s.first_output for s in others),
        "end_s": median(s.end for s in others),
        "first_run_s": first.first_output,
        "rounds": rounds,
        "first_token_s_of_rounds": [s.first_output for s in others],
    }


def start(command: Sequence[str]) -> Start:
    """Run a process to its end. Raises LooseleafError, with its last words, if it fails."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process:
            assert process.stdout is not None
            output = process.stdout.read(1)
            first = time.perf_counter() - begin
            process.stdout.read()
        end = time.perf_counter() - begin
        if process.returncode or not output:
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise LooseleafError(
                f"`{' '.join(command)}` ended with status {process.returncode}: "
                f"{words.removeprefix('looseleaf: error: ') or 'it printed nothing'}"
            )
    return Start(first, end)
