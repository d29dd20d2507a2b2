"""A unix socket to serve at: taken from nobody who listens, and gone with the server."""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from looseleaf.core.errors import LooseleafError

DEFAULT_MODE = 0o600
BACKLOG = 2048


@contextmanager
def unix_socket(path: Path, mode: int = DEFAULT_MODE) -> Iterator[socket.socket]:
    """A socket that listens at `path`, which is removed in the end if it is still this one.

    A socket's file that nobody listens at is replaced; anything else that is there stays. Whoever
    may write to the file by its `mode` can connect. Raises LooseleafError.
    """
    try:
        with _locked(path.absolute().parent):
            _remove_stale(path)
            listener = _bound(path, mode)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LooseleafError(f"cannot serve at the unix socket {path}: {reason}") from None
    ours = _identity(path)
    try:
        with listener:
            yield listener
    finally:
        with suppress(OSError):
            if _identity(path) == ours:
                path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Of several servers that start at once, one after the other looks and binds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise LooseleafError(
            f"cannot serve at the unix socket {path}: there is something else, which is not "
            "replaced; take another path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:
            pass  # somebody whose backlog is full
    raise LooseleafError(
        f"cannot serve at the unix socket {path}: somebody listens there; stop what is serving "
        "there, or take another path"
    )


def _bound(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        # Nobody can connect before `listen`.
        path.chmod(mode)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
