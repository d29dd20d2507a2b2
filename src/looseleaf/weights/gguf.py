"""A GGUF file, mapped into memory."""

import hashlib
import mmap
import os
import stat
import time
from difflib import get_close_matches
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from looseleaf.weights.dequantize import dequantize
from looseleaf.weights.errors import GGUFError
from looseleaf.weights.ggml_types import TYPES_BY_NAME
from looseleaf.weights.gguf_header import TensorInfo, parse_header

__all__ = ["GGUFError", "GGUFFile", "TensorInfo"]

_SAMPLE_BYTES = 128
_NANOSECONDS = 10**9


class GGUFFile:
    """The metadata and tensors of one GGUF file, versions 2 and 3, little-endian.

    Opening parses the header and maps the rest: no tensor data is read. Raises `GGUFError`, whose
    message starts with the path, for whatever is wrong with the file.

    `metadata` maps keys to values: numbers and bools as Python's, strings as `str`, arrays of
    strings as `list[str]`, other arrays as read-only one-dimensional NumPy arrays. Bytes that are
    not UTF-8 become U+FFFD in values; in keys and tensor names they are an error.

    `metadata` and `tensors` (in the file's order) stay usable after `close`. So do arrays that
    `raw` returned: the mapping lives as long as the last of them. The file must not be changed in
    place meanwhile; replacing it by renaming another over it is safe.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map: mmap.mmap | None = None
        try:
            self._map, self._inode = _map_file(self.path)
            header = parse_header(self._map)
        except (GGUFError, OSError, ValueError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise GGUFError(f"{self.path}: {reason}") from None
        self.version = header.version
        self.metadata = header.metadata
        self.tensors = header.tensors
        self._header_size = header.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping; calling it twice is fine."""
        mapped, self._map = self._map, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:
                return  # arrays from `raw` still need it; it goes with the last of them

    @property
    def architecture(self) -> str:
        """The model family, such as "llama". Raises `GGUFError` when the file does not say."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise GGUFError(f"{self.path}: general.architecture is missing")
        return name

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor decoded to float32, a fresh array of shape `tensors[name].shape`.

        Raises `GGUFError` for an unknown name and for a type that cannot be decoded.
        """
        info = self._info(name)
        try:
            return dequantize(self.raw(name), info.ggml_type).reshape(info.shape)
        except GGUFError as error:
            raise GGUFError(f"{self.path}: tensor {name!r}: {error}") from None

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes `(..., bytes per row)`, a read-only view of the mapping: no copy."""
        info = self._info(name)
        flat = np.frombuffer(self._mapped(), np.uint8, info.nbytes, info.offset)
        if not info.shape:
            return flat
        layout = TYPES_BY_NAME[info.ggml_type]
        row_bytes = info.shape[-1] // layout.block_size * layout.type_size
        return flat.reshape(*info.shape[:-1], row_bytes)

    def fingerprint(self) -> str:
        """A cheap identity of the model, as 64 hexadecimal digits.

        SHA-256 over the file's size, the whole header and the first, middle and last 128 bytes of
        every tensor. It tells models and quantizations apart; it is no proof against tampering, as
        a change elsewhere inside a tensor goes unseen. The path and time stamps do not matter.
        """
        mapped = self._mapped()
        digest = hashlib.sha256(len(mapped).to_bytes(8, "little"))
        digest.update(mapped[: self._header_size])
        for info in self.tensors.values():
            length = min(_SAMPLE_BYTES, info.nbytes)
            for skipped in (0, (info.nbytes - length) // 2, info.nbytes - length):
                start = info.offset + skipped
                digest.update(mapped[start : start + length])
        return digest.hexdigest()

    def identity(self) -> str | None:
        """What `fingerprint` says and the state of this very file, as 64 hexadecimal digits.

        Whatever writes into the file changes it, wherever; so does copying the file. None while the
        file's time stamp is so young that another change might leave it as it is, and where the
        path has come to lead to another file.
        """
        fingerprint = self.fingerprint()
        try:
            status = self.path.stat()
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != self._inode:
            return None
        # Time stamps move in steps of a few milliseconds; of whole seconds on some file systems.
        whole_seconds = status.st_ctime_ns % _NANOSECONDS == 0
        step = 2 * _NANOSECONDS if whole_seconds else _NANOSECONDS // 20
        if abs(time.time_ns() - status.st_ctime_ns) < step:
            return None
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return hashlib.sha256(f"{fingerprint} {state}".encode()).hexdigest()

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            close = get_close_matches(name, self.tensors, n=3)
            hint = f"; the closest are {', '.join(close)}" if close else ""
            raise GGUFError(
                f"{self.path}: no tensor {name!r} among the {len(self.tensors)} in the file{hint}"
            )
        return info

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise GGUFError(f"{self.path}: the file is closed: read tensors before closing it")
        return self._map


def _map_file(path: Path) -> tuple[mmap.mmap, tuple[int, int]]:
    """The whole file, and its device and inode."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise GGUFError("not a regular file: pass the path of a .gguf file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            raise GGUFError("the file is empty: download it again")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return mapped, (status.st_dev, status.st_ino)
