"""A feed on disk: a frame to a line, in JSON, from a snapshot on. With `.gz`, compressed."""

import gzip
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self, cast

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.studio.frames import FORMAT, Frame, Snapshot, decode

logger = logging.getLogger(__name__)


class Recorder:
    """Writes frames to a new file, which takes the place of one that was there.

    Each is with the system before `write` returns, but for what compressing holds back: the file
    of a process that dies can be read up to there. Raises OSError.

    When a file is `full`, which is at half of `limit` bytes, it is time for `set_aside` and another
    recorder: the newest frames are kept, and the two files together are within the limit.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._file = _open(path, "wb")
        self._limit = limit
        self._least = 0
        """A snapshot may be larger than any limit: something has to come after it."""

    @property
    def full(self) -> bool:
        if self._limit is None:
            return False
        size = os.fstat(self._file.fileno()).st_size
        return size >= max(self._limit // 2, 2 * self._least)

    def write(self, frame: bytes) -> None:
        self._file.write(frame + b"\n")
        self._file.flush()
        self._least = self._least or os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def set_aside(path: Path) -> Path:
    """Rename a recording that is full, in the place of the one before it. Raises OSError."""
    name = path.name
    end = ".gz" if path.suffix == ".gz" else ""
    stem, dot, suffix = name.removesuffix(end).rpartition(".")
    before = f"{stem}.before.{suffix}" if dot and stem else f"{name.removesuffix(end)}.before"
    return path.replace(path.with_name(before + end))


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a recording, without what a process that died left unfinished at the end.

    Raises LooseleafError for what is no recording, or one that cannot be read here.
    """
    try:
        with _open(path, "rb") as file:
            for number, line in enumerate(_whole_lines(file, path), start=1):
                if number == 1:
                    _check_first(line, path)
                yield line
    except OSError as error:
        raise LooseleafError(f"cannot read {path}: {error.strerror or error}") from error


def frames_of(path: Path) -> Iterator[Frame]:
    """Raises LooseleafError as `lines_of` does, and for a line that is no frame."""
    for _, frame in lines_and_frames_of(path):
        yield frame


def lines_and_frames_of(path: Path) -> Iterator[tuple[bytes, Frame]]:
    """The same, with the line that each frame is."""
    for number, line in enumerate(lines_of(path), start=1):
        try:
            yield line, decode(line)
        except msgspec.DecodeError as error:
            raise LooseleafError(f"line {number} of {path} is no frame: {error}") from None


def _open(path: Path, mode: str) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, mode))
    return cast(IO[bytes], path.open(mode))


def _whole_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        for line in file:
            if not line.endswith(b"\n"):
                logger.warning("%s ends within a line, which is left out", path)
                return
            yield line
    except EOFError:
        logger.warning("%s ends early: what was not written is left out", path)


def _check_first(line: bytes, path: Path) -> None:
    try:
        first = decode(line)
    except msgspec.DecodeError:
        first = None
    if not isinstance(first, Snapshot):
        raise LooseleafError(
            f"{path} is no recording of the studio: it does not begin with a snapshot. Recordings "
            f"are made with `looseleaf serve --studio-record FILE`"
        )
    if first.format != FORMAT:
        raise LooseleafError(
            f"{path} has format {first.format}, but this version reads format {FORMAT}: open it "
            f"with the version of Looseleaf that made it"
        )
