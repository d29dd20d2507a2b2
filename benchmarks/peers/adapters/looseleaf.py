"""Ours, through its own command."""

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peers.processes import PeerError, last_words, started
from peers.tasks import Task


class Looseleaf:
    name = "looseleaf"

    def __init__(self, *, executor: str, threads: int) -> None:
        self._executor = executor
        self._threads = threads

    def run(self, task: Task, timeout_s: float) -> dict[str, Any]:
        """What `looseleaf bench` says of one round after a warm-up. Raises PeerError."""
        name = task.workload.name if task.workload is not None else task.name
        command = [sys.executable, "-m", "looseleaf", "bench", name, "--json", "--rounds", "1"]
        command += ["--executor", self._executor]
        if self._executor != "reference":
            command += ["--threads", str(self._threads)]
        with (
            tempfile.TemporaryFile() as errors,
            started(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise PeerError(f"no answer within {timeout_s:.0f} s") from None
            if process.returncode:
                raise PeerError(f"status {process.returncode}: {last_words(errors)}")
        figures: dict[str, Any] = json.loads(output)
        return figures


def size_mib() -> float:
    """What the installed package and all that it needs take on disk, without models."""
    names, size = ["looseleaf"], 0
    for name in names:  # grows
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # not needed on this system
        for requirement in package.requires or []:
            found = re.match(r"[\w.-]+", requirement)
            needed = found[0].lower() if found else ""
            if "extra ==" not in requirement and needed not in names:
                names.append(needed)
        if name != "looseleaf":
            files = [Path(str(file.locate())) for file in package.files or []]
            size += sum(file.stat().st_size for file in files if file.is_file())
    return (size + _own_size()) / 2**20


def _own_size() -> int:
    """The package's files where it is installed from its sources, as it is here."""
    package, native = find_spec("looseleaf"), find_spec("looseleaf._native")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent
    files = {file for file in folder.rglob("*") if file.suffix not in (".pyc", ".cpp", ".h")}
    if native is not None and native.origin is not None:
        files.add(Path(native.origin))
    return sum(file.stat().st_size for file in files if file.is_file())
