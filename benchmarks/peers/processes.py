"""Folders of peers and the processes that fill them and run in them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import IO

from peers.protocol import Answer, Request, Span

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent / "build" / "peers"
"""Where peers are installed; not part of the repository."""

INSTALL_TIMEOUT_S = 3 * 3600  # a compiler on a busy machine


class PeerError(Exception):
    """A peer that cannot be installed or does not answer. The text is for people."""


def run_step(command: Sequence[str | Path], log: Path, *, cwd: Path | None = None) -> None:
    """Run a step of an installation, with its output added to `log`. Raises PeerError."""
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"  {' '.join(words)}", file=sys.stderr, flush=True)
    with open(log, "a") as output, started(words, stdout=output, stderr=output, cwd=cwd) as process:
        try:
            process.wait(INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{words[0]} took more than {INSTALL_TIMEOUT_S} s: see {log}") from None
    if process.returncode:
        raise PeerError(f"{words[0]} ended with status {process.returncode}: see {log}")


def make_venv(folder: Path, requirements: Sequence[str], log: Path) -> Path:
    """A virtual environment with exactly these packages and what they need; its interpreter.

    One that was made before with the same requirements is taken as it is.
    """
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(requirements) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        run_step([sys.executable, "-m", "venv", "--clear", folder], log)
        run_step([python, "-m", "pip", "install", "--quiet", *requirements], log)
        stamp.write_text(wanted)
    return python


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A place beside `target` for what is being made, which gets its name only once all is well."""
    partial = target.with_name(f"{target.name}.partial")
    discard(partial)
    target.parent.mkdir(parents=True, exist_ok=True)
    yield partial
    discard(target)
    partial.rename(target)


def discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_worker(python: Path, worker: str, request: Request, timeout_s: float) -> Answer:
    """Let `workers/<worker>.py` answer the request. Raises PeerError."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(BENCHMARKS),
        "OMP_NUM_THREADS": str(request.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    start = perf_counter()
    # -P: else the current folder would come before all packages.
    command = [str(python), "-P", "-m", f"peers.workers.{worker}"]
    with (
        tempfile.TemporaryFile() as errors,
        started(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        try:
            output, _ = process.communicate(json.dumps(request.to_json()).encode(), timeout_s)
        except subprocess.TimeoutExpired:
            raise PeerError(f"no answer within {timeout_s:.0f} s") from None
        elapsed = perf_counter() - start
        if process.returncode or not output:
            raise PeerError(f"status {process.returncode}: {last_words(errors)}")
    answer = json.loads(output)
    return Answer(
        wall_s=answer["wall_s"],
        spans=[Span(*span) for span in answer["spans"]],
        peak_rss_mib=answer["peak_rss_mib"],
        elapsed_s=elapsed,
    )


@contextmanager
def started(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has ended, and all that it started with it, when the block is left."""
    process = subprocess.Popen(command, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End it and the group that it leads: first asked, then made to. Ended ones are left alone."""
    for number, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def last_words(errors: IO[bytes]) -> str:
    """The last line that says something."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


def peak_memory_mib(process_id: int) -> float:
    """The most physical memory that a running process has had at once; NaN if that is not told."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return float("nan")
    kib = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return kib[0] / 1024 if kib else float("nan")


def size_mib(*folders: Path) -> float:
    """What files take, each counted once however many links lead to it."""
    files = {
        (info.st_dev, info.st_ino): info.st_size
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for info in [path.stat()]
    }
    return sum(files.values()) / 2**20
