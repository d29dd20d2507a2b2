"""The folder that downloaded models are kept in."""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from looseleaf.weights.catalog import KnownModel

_log = logging.getLogger(__name__)

_TEMPORARY = "tmp-"


class CachedModel:
    """The place of one model: `<cache>/models/<name>/<file>`, a lock and a note beside it.

    The note remembers the hash together with the size and time stamp that the file had when it was
    hashed, so that a later start need not read the whole file again.
    """

    def __init__(self, cache_dir: Path, model: KnownModel) -> None:
        self.model = model
        self.folder = cache_dir / "models" / model.name
        self.path = self.folder / model.filename
        self._note = self.folder / f"{model.filename}.verified"

    def is_verified(self) -> bool:
        """Whether the file is there and has the pinned hash. Hashes only what the note misses."""
        try:
            stamp = self._stamp()
        except FileNotFoundError:
            return False
        if self._noted() == stamp:
            return True
        if stamp["size"] == self.model.size and sha256_of(self.path) == self.model.sha256:
            self._write_note(stamp)
            return True
        _log.warning("%s is damaged: it will be downloaded again", self.path)
        return False

    def install(self, file: Path) -> None:
        """Move a file with the right hash, from `temporary_folder`, into its place at once."""
        os.replace(file, self.path)
        self._write_note(self._stamp())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from downloading the same model; waits for the one that does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for another download of %s", self.model.name)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """A folder on the same file system, removed at the end. Only while `locked`.

        Whatever an interrupted download left behind is removed first.
        """
        import tempfile

        for leftover in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            prefix=_TEMPORARY, dir=self.folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def _stamp(self) -> dict[str, object]:
        status = self.path.stat()
        return {
            "sha256": self.model.sha256,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
        }

    def _noted(self) -> object:
        try:
            return json.loads(self._note.read_text())
        except (OSError, ValueError):
            return None

    def _write_note(self, stamp: dict[str, object]) -> None:
        draft = self._note.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a read-only cache works too, only it is hashed at every start
            draft.write_text(json.dumps(stamp))
            os.replace(draft, self._note)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
