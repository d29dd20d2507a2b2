"""Packed weights in a file: written once, mapped into memory by every later start.

    magic | bytes of the table u64 | SHA-256 of the table | the table, in JSON
    padding to a whole page, then the weights, each aligned to 64 bytes

A file appears under its name all at once and is never written to again, so processes that map it
share its pages, and none sees half of it. Its table carries the key it was written under, which
says what is in it and in which layouts.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from looseleaf.core.errors import LooseleafError
from looseleaf.executors.packed_weights import ALIGNMENT, PackedForm, PackedWeight

DRAFT_SUFFIX = ".draft"

_MAGIC = b"LOOSELEAF-PACK-1"
_HEAD = struct.Struct(f"<{len(_MAGIC)}sQ32s")


class PackedFileError(LooseleafError):
    """A file that cannot be used: it is damaged, or holds something else."""


def open_packed(path: Path, key: str, forms: Mapping[str, PackedForm]) -> dict[str, PackedWeight]:
    """The weights `forms`, mapped read-only: nothing is read before it is used.

    Raises PackedFileError unless the file is complete and holds exactly these, under this key;
    OSError where it cannot be read.
    """
    offsets, nbytes = _places(forms)
    with path.open("rb") as file:
        table, data_start = _read_table(file)
        if table != _table(key, table.get("source"), forms):
            raise PackedFileError("it holds other weights")
        size = os.fstat(file.fileno()).st_size
        if size != data_start + nbytes:
            raise PackedFileError(f"it has {size} bytes instead of {data_start + nbytes}")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_WILLNEED)
    return {
        name: PackedWeight(
            form, np.frombuffer(mapped, np.uint8, form.nbytes, data_start + offsets[name])
        )
        for name, form in forms.items()
    }


def source_of(path: Path) -> str:
    """The model file that a file was made from. Raises as `open_packed` does."""
    with path.open("rb") as file:
        return str(_read_table(file)[0].get("source"))


def write_packed(
    path: Path,
    key: str,
    source: str,
    forms: Mapping[str, PackedForm],
    weights: Iterable[tuple[str, PackedWeight]],
) -> None:
    """Write `weights`, all that are in `forms`, one after the other; one process at a time.

    Raises OSError where that cannot be done, and leaves nothing behind.
    """
    offsets, nbytes = _places(forms)
    table = json.dumps(_table(key, source, forms)).encode()
    data_start = _data_start(len(table))
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    try:
        with draft.open("wb") as file:
            # Room for all of it first, so that a full disk is noticed before any work is done.
            os.posix_fallocate(file.fileno(), 0, data_start + nbytes)
            file.write(_HEAD.pack(_MAGIC, len(table), hashlib.sha256(table).digest()))
            file.write(table)
            for name, weight in weights:
                file.seek(data_start + offsets[name])
                file.write(weight.data.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _table(key: str, source: Any, forms: Mapping[str, PackedForm]) -> dict[str, Any]:
    weights = [[name, *form] for name, form in forms.items()]
    return {"key": key, "source": source, "weights": weights}


def _places(forms: Mapping[str, PackedForm]) -> tuple[dict[str, int], int]:
    """Where each weight begins, counted from the first, and the bytes of all."""
    offsets, end = {}, 0
    for name, form in forms.items():
        offsets[name] = -(-end // ALIGNMENT) * ALIGNMENT
        end = offsets[name] + form.nbytes
    return offsets, end


def _data_start(table_bytes: int) -> int:
    return -(-(_HEAD.size + table_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE


def _read_table(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The checked table, and where the data begins."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise PackedFileError("it is cut short")
    magic, table_bytes, digest = _HEAD.unpack(head)
    if magic != _MAGIC or table_bytes > os.fstat(file.fileno()).st_size:
        raise PackedFileError("its beginning is damaged")
    text = file.read(table_bytes)
    if hashlib.sha256(text).digest() != digest:
        raise PackedFileError("its table is damaged")
    table: dict[str, Any] = json.loads(text)
    return table, _data_start(table_bytes)
