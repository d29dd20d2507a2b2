"""Whatever a file holds, opening it succeeds or raises `GGUFError`, quickly."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.weights.gguf import GGUFError, GGUFFile
from looseleaf.weights.gguf_header import Header, parse_header

U8, BOOL, F32, STRING, ARRAY, U32 = 0, 7, 6, 8, 9, 4
Q4_0, FLOATS = 2, 0


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + u32(kind) + value


def entry(
    name: str | bytes = "w",
    dimensions: tuple[int, ...] = (64, 2),
    kind: int = Q4_0,
    offset: int = 0,
) -> bytes:
    sizes = b"".join(map(u64, dimensions))
    return string(name) + u32(len(dimensions)) + sizes + u32(kind) + u64(offset)


def header(
    pairs: list[bytes] | None = None,
    entries: list[bytes] | None = None,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    version: bytes = u32(3),
) -> bytes:
    pairs, entries = pairs or [], entries or []
    counts = u64(len(entries) if num_tensors is None else num_tensors)
    counts += u64(len(pairs) if num_pairs is None else num_pairs)
    return b"GGUF" + version + counts + b"".join(pairs) + b"".join(entries)


def padded(content: bytes, data: bytes = b"") -> bytes:
    return content + bytes(-len(content) % 32) + data


SOUND_HEADER = header(
    [
        pair("general.architecture", STRING, string("llama")),
        pair("general.alignment", U32, u32(32)),
        pair("words", ARRAY, u32(STRING) + u64(3) + string("a") + string("") + string("Ġb")),
        pair("types", ARRAY, u32(U8) + u64(4) + b"\1\2\3\4"),
        pair("flag", BOOL, b"\1"),
        pair("eps", F32, struct.pack("<f", 1e-5)),
    ],
    [entry("w", (64, 2), Q4_0, 0), entry("norm", (8,), FLOATS, 96)],
)
SOUND = padded(SOUND_HEADER, bytes(range(72)) + bytes(24) + bytes(range(32)))


def refuse(content: bytes, message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        parse_header(content)


def parsed_or_refused(content: bytes) -> Header | str:
    try:
        return parse_header(content)
    except GGUFError as error:
        return str(error)


def read_or_refused(path: Path) -> dict[str, tuple[int, ...]] | str:
    try:
        with GGUFFile(path) as file:
            return {name: file.tensor(name).shape for name in file.tensors}
    except GGUFError as error:
        return str(error)


def test_the_sound_file_is_sound() -> None:
    parsed = parse_header(SOUND)
    assert parsed.size == len(SOUND_HEADER)
    assert parsed.metadata["words"] == ["a", "", "Ġb"]
    assert {name: info.shape for name, info in parsed.tensors.items()} == {
        "w": (2, 64),
        "norm": (8,),
    }


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for length in range(len(SOUND)):
        with pytest.raises(GGUFError):
            parse_header(SOUND[:length])
        path.write_bytes(SOUND[:length])
        with pytest.raises(GGUFError, match=r"m\.gguf: "):
            GGUFFile(path)
    path.write_bytes(SOUND)
    with GGUFFile(path) as file:
        assert file.tensor("norm").shape == (8,)


@pytest.mark.model
def test_the_real_model_truncated(smollm2: Path, tmp_path: Path) -> None:
    size = smollm2.stat().st_size
    path = tmp_path / "m.gguf"
    with smollm2.open("rb") as file:
        path.write_bytes(file.read(2_000_000))
    for length in (1_999_999, 1_785_663, 1_700_000, 900_000, 1_000, 23, 4):
        os.truncate(path, length)
        with pytest.raises(GGUFError, match="truncated"):
            GGUFFile(path)
    assert size > 2_000_000


@given(st.data())
def test_any_bytes_changed(data: st.DataObject) -> None:
    content = bytearray(SOUND)
    changes = st.tuples(st.integers(0, len(SOUND_HEADER) - 1), st.integers(0, 255))
    for position, byte in data.draw(st.lists(changes, min_size=1, max_size=6)):
        content[position] = byte
    match parsed_or_refused(bytes(content)):
        case Header(tensors=tensors):
            for info in tensors.values():
                assert 0 < info.nbytes <= len(content) - info.offset
        case message:
            assert message


@given(at=st.integers(0, len(SOUND_HEADER) - 8), value=st.sampled_from([2**64 - 1, 2**63, 2**32]))
def test_any_eight_bytes_become_a_huge_number(at: int, value: int) -> None:
    match parsed_or_refused(SOUND[:at] + u64(value) + SOUND[at + 8 :]):
        case Header(metadata=metadata):
            assert len(metadata) <= 6
        case message:
            assert message


@given(changes=st.binary(max_size=400))
def test_any_header_after_the_magic(changes: bytes) -> None:
    match parsed_or_refused(b"GGUF\3\0\0\0" + changes):
        case Header(size=size):
            assert size <= len(changes) + 8
        case message:
            assert message


@given(position=st.integers(0, len(SOUND_HEADER) - 1), byte=st.integers(0, 255))
def test_changed_files_open_and_decode_or_say_why(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    path = tmp_path_factory.mktemp("changed") / "m.gguf"
    path.write_bytes(SOUND[:position] + bytes([byte]) + SOUND[position + 1 :])
    match read_or_refused(path):
        case str(message):
            assert message.startswith(f"{path}: ")
        case shapes:
            assert len(shapes) == 2


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (u32(0), "version 0 is not supported, only versions 2 and 3 are: convert"),
        (u32(1), "version 1 is not supported, only versions 2 and 3 are: convert"),
        (u32(4), "version 4 is not supported, only versions 2 and 3 are: upgrade"),
        (struct.pack(">I", 3), r"big-endian \(version 3\).* 2 and 3"),
    ],
)
def test_other_versions(version: bytes, message: str) -> None:
    refuse(padded(header(version=version)), message)


@pytest.mark.parametrize("count", [2, 10**6, 2**32, 2**63, 2**64 - 1])
def test_counts_beyond_the_file(count: int) -> None:
    claim = f"claims {count} "
    refuse(header(num_tensors=count), claim + "tensors")
    refuse(header(num_pairs=count), claim + "metadata entries")
    for kind, smallest in ((STRING, 8), (U32, 4), (F32, 4)):
        array = pair("x", ARRAY, u32(kind) + u64(count) + bytes(smallest))
        refuse(header([array]), claim + "(strings|elements) in 'x'")
    short = pair("x", STRING, u64(count) + b"a")
    refuse(header([short]), f"needs {count} bytes")
    words = pair("x", ARRAY, u32(STRING) + u64(2) + string("a") + u64(count) + b"b")
    refuse(header([words]), "string 1 of 'x' needs")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([pair("x", ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(0))], "'x' is an array of arrays"),
        ([pair("x", 13, bytes(8))], "'x' has the unknown value type 13"),
        ([pair("x", ARRAY, u32(99) + u64(0))], "'x' has the unknown element type 99"),
        ([pair("x", U8, b"\1"), pair("x", U8, b"\2")], "key 'x' appears twice"),
        ([pair(b"\xff\xfe", U8, b"\1")], "key of metadata entry 0 is not UTF-8"),
        ([pair("general.alignment", U32, u32(0))], "alignment is 0, not a power of two"),
        ([pair("general.alignment", U32, u32(48))], "alignment is 48, not a power of two"),
        ([pair("general.alignment", BOOL, b"\1")], "alignment is True, not a power of two"),
        ([pair("general.alignment", STRING, string("32"))], "alignment is '32', not a power"),
        ([pair("split.count", U8, b"\3")], "one of 3 parts of a split GGUF.*--merge"),
    ],
)
def test_bad_metadata(pairs: list[bytes], message: str) -> None:
    refuse(padded(header(pairs)), message)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(kind=42)], "'w' has the unknown type 42"),
        ([entry(kind=31)], r"'w' has type Q4_0_4_4 \(31\), which ggml has dropped"),
        ([entry(), entry()], "tensor 'w' appears twice"),
        ([entry(offset=16)], "starts at 16, not a multiple of the alignment 32"),
        ([entry(offset=2**64 - 32)], "'w' needs bytes"),
        ([entry(offset=64)], "'w' needs bytes"),
        ([entry(dimensions=(2**32, 2**32))], "'w' needs bytes"),
        ([entry(dimensions=(2**63, 2, 2**62, 8))], "'w' needs bytes"),
        ([entry(dimensions=(2**64 - 32, 1))], "'w' needs bytes"),
        ([entry(dimensions=(48, 2))], "rows of 48 elements, not a multiple of the Q4_0 block"),
        ([entry(dimensions=())], "rows of 1 elements, not a multiple of the Q4_0 block"),
        ([entry(dimensions=(32, 0))], r"'w' is empty, its dimensions are \[32, 0\]"),
        ([entry(dimensions=(1, 1, 1, 1, 1))], "has 5 dimensions, at most 4"),
        ([entry(name=b"\xc3(")], "name of tensor 0 is not UTF-8"),
    ],
)
def test_bad_tensors(entries: list[bytes], message: str) -> None:
    refuse(padded(header(entries=entries), bytes(96)), message)


def test_a_dimension_count_beyond_all_bounds() -> None:
    refuse(header(entries=[string("w") + u32(2**32 - 1) + bytes(64)]), "4294967295 dimensions")


def test_values_that_are_not_utf8_are_read_with_a_replacement() -> None:
    words = pair("words", ARRAY, u32(STRING) + u64(2) + string(b"\xff") + string("b"))
    parsed = parse_header(padded(header([words, pair("text", STRING, string(b"a\xe2"))])))
    assert parsed.metadata == {"words": ["\ufffd", "b"], "text": "a\ufffd"}


def test_a_whole_gguf_that_is_not_split_may_say_so() -> None:
    parsed = parse_header(padded(header([pair("split.count", U8, b"\1")])))
    assert parsed.metadata == {"split.count": 1}


def test_scalars_and_empty_arrays_are_fine() -> None:
    content = padded(
        header(
            [pair("x", ARRAY, u32(F32) + u64(0)), pair("y", ARRAY, u32(STRING) + u64(0))],
            [entry(dimensions=(), kind=FLOATS)],
        ),
        bytes(4),
    )
    parsed = parse_header(content)
    assert parsed.metadata["x"].shape == (0,)
    assert parsed.metadata["y"] == []
    assert (parsed.tensors["w"].shape, parsed.tensors["w"].nbytes) == ((), 4)
