"""The header of a GGUF file: metadata and the table of tensors.

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata     key string, value type u32, value
    tensors      name string, number of dimensions u32, dimensions u64..., type u32, offset u64
    padding to the alignment, then the tensors' data

A string is a u64 length and UTF-8 bytes. Versions 2 and 3 share this layout. Every count and length
is checked against the bytes that are left before anything is read or allocated, so damaged input
costs no more time and memory than a sound file of its size.
Format: `docs/gguf.md` in ggml.
"""

import struct
from dataclasses import dataclass
from math import prod
from mmap import mmap
from typing import Any

import numpy as np

from looseleaf.weights.errors import GGUFError
from looseleaf.weights.foreign import describe_foreign
from looseleaf.weights.ggml_types import REMOVED_TYPES, TYPES_BY_ID, GGMLType

SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_MAX_DIMENSIONS = 4
_SMALLEST_PAIR = 13  # an empty key, a type, one byte of value
_SMALLEST_TENSOR = 24  # an empty name, no dimensions, a type, an offset
_WINDOW = 1 << 18
_STRING, _ARRAY = 8, 9
_SCALAR_CODES = {  # the same letters mean the same to struct and to NumPy
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _SCALAR_CODES.items()}
_DTYPES = {kind: np.dtype(f"<{code}") for kind, code in _SCALAR_CODES.items()}
_BOOL = 7
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how to read it.

    `shape` is in NumPy order, the reverse of the file's: a linear weight is `(out, in)`. `offset`
    counts from the start of the file; the `nbytes` that follow it are all inside the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header; `size` is its length in bytes without the padding that follows."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size: int


def parse_header(buffer: bytes | mmap) -> Header:
    """Parse and check everything before the tensor data.

    `buffer` is the whole file: tensors must lie inside it. Raises `GGUFError` and nothing else.
    """
    cursor = _Cursor(buffer)
    version = _version(cursor)
    num_tensors = cursor.count("tensors", _SMALLEST_TENSOR)
    num_pairs = cursor.count("metadata entries", _SMALLEST_PAIR)
    metadata: dict[str, Any] = {}
    for i in range(num_pairs):
        key = cursor.name(f"the key of metadata entry {i}")
        if key in metadata:
            raise GGUFError(f"metadata key {key!r} appears twice: the file is damaged")
        metadata[key] = _value(cursor, key)
    _refuse_split(metadata)
    alignment = _alignment(metadata)
    entries = [_tensor_entry(cursor, i) for i in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, ggml_type, offset in entries:
        if name in tensors:
            raise GGUFError(f"tensor {name!r} appears twice: the file is damaged")
        if offset % alignment:
            raise GGUFError(
                f"tensor {name!r} starts at {offset}, not a multiple of the alignment {alignment}: "
                "the file is damaged"
            )
        nbytes = _stored_size(name, shape, ggml_type)
        start = data_start + offset
        if start + nbytes > len(buffer):
            raise GGUFError(
                f"tensor {name!r} needs bytes {start} to {start + nbytes} but the file has "
                f"{len(buffer)}: it is truncated or damaged; download it again"
            )
        tensors[name] = TensorInfo(name, shape, ggml_type.name, start, nbytes)
    return Header(version, metadata, tensors, cursor.position)


class _Cursor:
    """A position in the buffer; every read checks the bounds first."""

    __slots__ = ("buffer", "position", "size")

    def __init__(self, buffer: bytes | mmap) -> None:
        self.buffer = buffer
        self.position = 0
        self.size = len(buffer)

    def take(self, nbytes: int, what: str) -> int:
        """Move past `nbytes` and return where they start."""
        start = self.position
        if nbytes > self.size - start:
            raise GGUFError(
                f"{what} needs {nbytes} bytes at {start} but the file has {self.size}: "
                "it is truncated or damaged; download it again"
            )
        self.position = start + nbytes
        return start

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack_from(self.buffer, self.take(layout.size, what))[0]

    def count(self, of: str, smallest: int) -> int:
        """A u64 count of things that take at least `smallest` bytes each."""
        count: int = self.scalar(_U64, f"the number of {of}")
        left = self.size - self.position
        if count > left // smallest:
            raise GGUFError(
                f"the file claims {count} {of} but has {left} bytes left: "
                "it is truncated or damaged; download it again"
            )
        return count

    def string(self, what: str) -> bytes:
        length: int = self.scalar(_U64, f"the length of {what}")
        start = self.take(length, what)
        return self.buffer[start : start + length]

    def name(self, what: str) -> str:
        raw = self.string(what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise GGUFError(f"{what} is not UTF-8: {raw[:40]!r}; the file is damaged") from None

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings in a row: a hundred thousand for a vocabulary and its merges."""
        out: list[str] = []
        while len(out) < count:
            window = self.buffer[self.position : self.position + _WINDOW]
            end = self.position + len(window)
            texts, nbytes = _short_strings(window, count - len(out))
            out += texts
            self.position += nbytes
            # The rest of the window: strings of another kind, and the one that it cuts.
            while len(out) < count and self.position <= end:
                raw = self.string(f"string {len(out)} of {what}")
                out.append(raw.decode("utf-8", "replace"))
        return out


def _short_strings(window: bytes, most: int) -> tuple[list[str], int]:
    """What of the strings that `window` begins with can be decoded in one go, at most `most` or
    perhaps none, and the bytes that these take.

    The length of a string of 1 to 255 bytes is that number and seven zeros. Strings without zeros
    are certain once each length leads to the zeros of the next:

        3 0000000 t h e 2 0000000 o f 5 0000000 ...
          ^ zeros[0]      ^ zeros[1] = zeros[0] + 7 + 3 + 1
    """
    flat = np.frombuffer(window, np.uint8).copy()
    is_zero = flat == 0
    seven = is_zero[: max(0, len(flat) - 6)].copy()
    for i in range(1, 7):
        seven &= is_zero[i : i + len(seven)]
    zeros = np.flatnonzero(seven)[: most + 1]
    if len(zeros) < 2 or zeros[0] != 1:
        return [], 0
    lengths = flat[zeros - 1].astype(np.int64)
    wrong = np.flatnonzero(zeros[:-1] + 7 + lengths[:-1] + 1 != zeros[1:])
    count = int(wrong[0]) if len(wrong) else len(zeros) - 1
    first, end = 8, int(zeros[count]) - 1
    flat[zeros[1:count] - 1] = 0
    if not count or np.count_nonzero(flat[first:end] == 0) != 8 * (count - 1):
        return [], 0
    return flat[first:end].tobytes().decode("utf-8", "replace").split("\0" * 8), end


def _version(cursor: _Cursor) -> int:
    if foreign := describe_foreign(cursor.buffer):
        raise GGUFError(foreign)
    cursor.take(4, "the magic")
    version: int = cursor.scalar(_U32, "the version")
    supported = " and ".join(map(str, SUPPORTED_VERSIONS))
    if version in SUPPORTED_VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise GGUFError(
            f"the file is big-endian (version {swapped}); only little-endian versions "
            f"{supported} are supported: convert it with gguf_convert_endian.py"
        )
    advice = "upgrade Looseleaf" if version > max(SUPPORTED_VERSIONS) else "convert the model again"
    raise GGUFError(
        f"GGUF version {version} is not supported, only versions {supported} are: {advice}"
    )


def _value(cursor: _Cursor, key: str) -> Any:
    kind: int = cursor.scalar(_U32, f"the type of {key!r}")
    if kind == _STRING:
        return cursor.string(repr(key)).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(cursor, key)
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind], repr(key))
    raise GGUFError(f"metadata {key!r} has the unknown value type {kind}: the file is damaged")


def _array(cursor: _Cursor, key: str) -> Any:
    kind: int = cursor.scalar(_U32, f"the element type of {key!r}")
    if kind == _STRING:
        return cursor.strings(cursor.count(f"strings in {key!r}", 8), repr(key))
    if kind == _ARRAY:
        raise GGUFError(f"metadata {key!r} is an array of arrays, which is not supported")
    if kind not in _DTYPES:
        raise GGUFError(f"metadata {key!r} has the unknown element type {kind}")
    dtype = _DTYPES[kind]
    count = cursor.count(f"elements in {key!r}", dtype.itemsize)
    start = cursor.take(count * dtype.itemsize, repr(key))
    raw = cursor.buffer[start : cursor.position]
    if kind == _BOOL:
        values = np.frombuffer(raw, np.uint8) != 0
    else:
        values = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
    values.flags.writeable = False
    return values


def _refuse_split(metadata: dict[str, Any]) -> None:
    count = metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        raise GGUFError(
            f"the file is one of {count} parts of a split GGUF, which is not supported: "
            "join them with `llama-gguf-split --merge FIRST_PART OUTPUT`"
        )


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise GGUFError(f"general.alignment is {alignment!r}, not a power of two")
    return alignment


def _tensor_entry(cursor: _Cursor, i: int) -> tuple[str, tuple[int, ...], GGMLType, int]:
    name = cursor.name(f"the name of tensor {i}")
    num_dimensions: int = cursor.scalar(_U32, f"the number of dimensions of {name!r}")
    if num_dimensions > _MAX_DIMENSIONS:
        raise GGUFError(
            f"tensor {name!r} has {num_dimensions} dimensions, at most {_MAX_DIMENSIONS} are "
            "allowed: the file is damaged"
        )
    dimensions = [cursor.scalar(_U64, f"the shape of {name!r}") for _ in range(num_dimensions)]
    if 0 in dimensions:
        raise GGUFError(f"tensor {name!r} is empty, its dimensions are {dimensions}")
    kind: int = cursor.scalar(_U32, f"the type of {name!r}")
    offset: int = cursor.scalar(_U64, f"the offset of {name!r}")
    if kind in REMOVED_TYPES:
        raise GGUFError(
            f"tensor {name!r} has type {REMOVED_TYPES[kind]} ({kind}), which ggml has dropped: "
            "quantize the model again"
        )
    if kind not in TYPES_BY_ID:
        raise GGUFError(
            f"tensor {name!r} has the unknown type {kind}: the file is damaged or newer than "
            "this version of Looseleaf"
        )
    return name, tuple(reversed(dimensions)), TYPES_BY_ID[kind], offset


def _stored_size(name: str, shape: tuple[int, ...], ggml_type: GGMLType) -> int:
    row = shape[-1] if shape else 1
    if row % ggml_type.block_size:
        raise GGUFError(
            f"tensor {name!r} has rows of {row} elements, not a multiple of the "
            f"{ggml_type.name} block size {ggml_type.block_size}: the file is damaged"
        )
    return prod(shape) // ggml_type.block_size * ggml_type.type_size
