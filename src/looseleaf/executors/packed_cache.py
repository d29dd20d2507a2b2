"""The folder of packed weights: one file for each model file, in the state it was last used in."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from looseleaf.executors.packed_file import (
    DRAFT_SUFFIX,
    PackedFileError,
    open_packed,
    source_of,
    write_packed,
)
from looseleaf.executors.packed_weights import PackedForm, PackedWeight

logger = logging.getLogger(__name__)

SUFFIX = ".looseleaf-weights"

Weights = dict[str, PackedWeight]


class PackedCache:
    """Any number of processes may use one folder at once. Whatever is wrong with it is no error:
    weights are then packed in memory, and the log says why."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(
        self,
        key: str,
        source: Path,
        forms: Mapping[str, PackedForm],
        pack: Callable[[], Iterable[tuple[str, PackedWeight]]],
        is_current: Callable[[], bool],
    ) -> Weights:
        """The weights `forms` of the model file `source`: mapped from the folder, or what `pack`
        yields, and put there for the next time.

        `key` stands for everything they depend on; `is_current` says after packing whether it
        still does.
        """
        path = self._folder / f"{source.stem}-{key[:16]}{SUFFIX}"
        found = _open(path, key, forms)
        if found is not None:
            return found
        try:
            with self._locked():
                found = _open(path, key, forms)  # by the one who had the lock before
                if found is not None:
                    return found
                real_source = str(source.resolve())
                self._tidy(path, real_source)
                write_packed(path, key, real_source, forms, _guarded(pack(), is_current))
                return open_packed(path, key, forms)
        except (OSError, PackedFileError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            logger.warning(
                "packed weights are not kept in %s (%s), so the next start takes as long as this "
                "one; choose another cache folder, or leave the weight cache off",
                self._folder,
                reason,
            )
        return dict(pack())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time packs; the others wait, and then find what it packed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _tidy(self, path: Path, source: str) -> None:
        """Remove what was left behind, and what was packed from this or no longer existing files.
        Whoever has one of them mapped goes on with it."""
        for other in self._folder.iterdir():
            if other.suffix == DRAFT_SUFFIX or (
                other.suffix == SUFFIX and other != path and _is_outdated(other, source)
            ):
                with suppress(OSError):
                    other.unlink()


def _open(path: Path, key: str, forms: Mapping[str, PackedForm]) -> Weights | None:
    try:
        return open_packed(path, key, forms)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, PackedFileError) as error:
        logger.warning("%s cannot be used (%s): packing again", path, error)
        return None


def _guarded(
    weights: Iterable[tuple[str, PackedWeight]], is_current: Callable[[], bool]
) -> Iterator[tuple[str, PackedWeight]]:
    yield from weights
    if not is_current():
        raise PackedFileError("the model file was changed while it was read")


def _is_outdated(path: Path, source: str) -> bool:
    try:
        of = source_of(path)
    except (OSError, PackedFileError):
        return True
    return of == source or not os.path.exists(of)
