"""The command line, called in this process or started as one of its own."""

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf

from looseleaf.cli import main
from looseleaf.weights import source

SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one line of JSON that was printed."""
        assert self.status == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def check_refused(self, *words: str) -> None:
        """A mistake of the user's: status 2, a last line that says what is wrong, no traceback."""
        assert self.status == 2, self
        assert "Traceback" not in self.err
        last = self.err.rstrip("\n").rpartition("\n")[2]
        assert last.startswith("looseleaf"), self.err
        assert ": error: " in last, self.err
        for word in words:
            assert word in last, self.err


class StandardInput(io.TextIOWrapper):
    def __init__(self, data: bytes, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


CommandLine = Callable[..., Outcome]


def without_the_warning(stderr: bytes) -> str:
    """Nothing is wrong where there was no compiler; it is only said."""
    lines = stderr.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "installed without its compiled part" not in line)


@pytest.fixture
def complaints() -> Callable[[bytes], str]:
    return without_the_warning


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """Run `looseleaf ARGUMENTS` in this process; whatever it raises is raised."""
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("looseleaf.server.run.Server.serve", None)  # would go on until a signal

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "stdin", StandardInput(stdin, terminal=terminal))
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse's
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a process of its own gets: an empty cache, and no package index."""
    return {
        **os.environ,
        "LOOSELEAF_CACHE": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "COLUMNS": "200",
    }


@pytest.fixture
def start(environment: dict[str, str]) -> Any:
    """Start `python -m looseleaf ARGUMENTS`, with `Popen`'s options; killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [sys.executable, "-m", "looseleaf", *arguments],
            **(pipes | {"env": environment} | options),
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def spawn(start: Any) -> CommandLine:
    """Run `python -m looseleaf ARGUMENTS` to its end."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        process = start(*arguments)
        out, err = process.communicate(stdin, SECONDS)
        return Outcome(process.returncode, out.decode(), without_the_warning(err))

    return run


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for the demo's system prompt, which is long in single bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_gguf, "CONTEXT", 2048)
        return tiny_gguf.write_tiny_model(tmp_path_factory.mktemp("model") / "roomy.gguf")


@pytest.fixture
def downloaded_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny model under the name `tiny`, downloaded into a cache of its own. Returns the file;
    its cache is `tmp_path / "elsewhere"`."""
    data = tiny_model.read_bytes()
    model = dataclasses.replace(
        source.known_models()["smollm2-135m"],
        name="tiny",
        filename="t.gguf",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        parts=(),
    )
    monkeypatch.setattr(source, "known_models", lambda: {"tiny": model})
    path = tmp_path / "elsewhere" / "models" / "tiny" / "t.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path
