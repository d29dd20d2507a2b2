"""Reading sound files, as the `gguf` package writes them."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from looseleaf.weights.dequantize import DECODERS
from looseleaf.weights.ggml_types import TYPES_BY_NAME
from looseleaf.weights.gguf import GGUFError, GGUFFile, TensorInfo

Bytes = NDArray[np.uint8]


def stored(ggml_type: str, rows: int, blocks: int, seed: int = 0) -> Bytes:
    width = blocks * TYPES_BY_NAME[ggml_type].type_size
    return np.random.default_rng(seed).integers(0, 256, (rows, width), np.uint8)


def write(
    path: Path,
    tensors: dict[str, tuple[str, Bytes]] | None = None,
    metadata: dict[str, tuple[Any, ...]] | None = None,
    alignment: int | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (value, *types) in (metadata or {}).items():
        writer.add_key_value(key, value, *types)
    for name, (ggml_type, raw) in (tensors or {}).items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[ggml_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_scalars_of_every_type(tmp_path: Path) -> None:
    types = gguf.GGUFValueType
    wanted: dict[str, tuple[Any, ...]] = {
        "u8": (200, types.UINT8),
        "i8": (-100, types.INT8),
        "u16": (60_000, types.UINT16),
        "i16": (-30_000, types.INT16),
        "u32": (4_000_000_000, types.UINT32),
        "i32": (-2_000_000_000, types.INT32),
        "u64": (2**64 - 1, types.UINT64),
        "i64": (-(2**63), types.INT64),
        "f32": (0.15625, types.FLOAT32),
        "f64": (0.1, types.FLOAT64),
        "yes": (True, types.BOOL),
        "no": (False, types.BOOL),
        "text": ("Ġhé 世界\n", types.STRING),
        "empty": ("", types.STRING),
    }
    with GGUFFile(write(tmp_path / "m.gguf", metadata=wanted)) as file:
        assert file.version == 3
        assert file.architecture == "llama"
        for key, (value, _) in wanted.items():
            assert file.metadata[key] == value
            assert type(file.metadata[key]) is type(value)


def test_arrays(tmp_path: Path) -> None:
    types = gguf.GGUFValueType
    tokens = ["<s>", "", "Ġthe", "世界", "a" * 5000]
    metadata: dict[str, tuple[Any, ...]] = {
        "tokens": (tokens, types.ARRAY, types.STRING),
        "token_type": ([1, -3, 2], types.ARRAY, types.INT32),
        "scores": ([0.5, -1.25], types.ARRAY, types.FLOAT32),
        "flags": ([True, False, True], types.ARRAY, types.BOOL),
        "big": ([2**63, 1], types.ARRAY, types.UINT64),
    }
    with GGUFFile(write(tmp_path / "m.gguf", metadata=metadata)) as file:
        read = file.metadata
    assert read["tokens"] == tokens
    for key, dtype in (
        ("token_type", np.int32),
        ("scores", np.float32),
        ("flags", np.bool_),
        ("big", np.uint64),
    ):
        assert read[key].dtype == dtype
        assert read[key].tolist() == metadata[key][0]
        assert not read[key].flags.writeable


@pytest.mark.parametrize("ggml_type", DECODERS)
def test_tensors_equal_the_oracles(tmp_path: Path, ggml_type: str) -> None:
    raw = stored(ggml_type, rows=6, blocks=3)
    path = write(tmp_path / "m.gguf", {"pad": ("F32", stored("F32", 1, 3)), "w": (ggml_type, raw)})
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[ggml_type])
    with GGUFFile(path) as file:
        info = file.tensors["w"]
        assert info.shape == (6, 3 * TYPES_BY_NAME[ggml_type].block_size)
        assert (info.ggml_type, info.nbytes) == (ggml_type, raw.nbytes)
        assert path.read_bytes()[info.offset : info.offset + info.nbytes] == raw.tobytes()
        np.testing.assert_array_equal(file.raw("w"), raw)
        np.testing.assert_array_equal(file.tensor("w"), wanted)


def test_shapes_are_in_numpy_order(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, tensor in (("one", values[0, 0, 0]), ("two", values[0, 0]), ("four", values)):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "m.gguf") as file:
        assert [*file.tensors] == ["one", "two", "four"]
        assert [info.shape for info in file.tensors.values()] == [(5,), (4, 5), (2, 3, 4, 5)]
        np.testing.assert_array_equal(file.tensor("four"), values)
        np.testing.assert_array_equal(file.tensor("one"), values[0, 0, 0])


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments(tmp_path: Path, alignment: int) -> None:
    first, second = stored("Q8_0", 3, 1), stored("Q4_1", 5, 2)
    tensors = {"a": ("Q8_0", first), "b": ("Q4_1", second)}
    with GGUFFile(write(tmp_path / "m.gguf", tensors, alignment=alignment)) as file:
        assert [info.offset % alignment for info in file.tensors.values()] == [0, 0]
        np.testing.assert_array_equal(file.raw("a"), first)
        np.testing.assert_array_equal(file.raw("b"), second)


def test_version_2_reads_the_same(tmp_path: Path) -> None:
    raw = stored("Q4_0", 2, 2)
    path = write(tmp_path / "m.gguf", {"w": ("Q4_0", raw)})
    content = bytearray(path.read_bytes())
    content[4] = 2
    path.write_bytes(content)
    with GGUFFile(path) as file:
        assert file.version == 2
        np.testing.assert_array_equal(file.raw("w"), raw)


def test_raw_is_a_view_that_outlives_the_file(tmp_path: Path) -> None:
    raw = stored("Q4_0", 4, 2)
    file = GGUFFile(write(tmp_path / "m.gguf", {"w": ("Q4_0", raw)}))
    view = file.raw("w")
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert np.shares_memory(view, file.raw("w"))
    file.close()
    file.close()
    np.testing.assert_array_equal(view, raw)
    assert file.tensors["w"] == TensorInfo(
        "w", (4, 64), "Q4_0", file.tensors["w"].offset, raw.nbytes
    )
    for read in (file.raw, file.tensor):
        with pytest.raises(GGUFError, match="closed"):
            read("w")
    with pytest.raises(GGUFError, match="closed"):
        file.fingerprint()


def test_an_unknown_tensor_is_named_with_its_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"blk.0.attn_q.weight": ("Q4_0", stored("Q4_0", 1, 1))})
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"attn_qq.*attn_q\.weight"):
        file.tensor("blk.0.attn_qq.weight")


def test_a_type_that_cannot_be_decoded_fails_only_when_used(tmp_path: Path) -> None:
    raw = stored("IQ2_XXS", 2, 1)
    with GGUFFile(write(tmp_path / "m.gguf", {"w": ("IQ2_XXS", raw)})) as file:
        np.testing.assert_array_equal(file.raw("w"), raw)
        with pytest.raises(GGUFError, match=r"m\.gguf: tensor 'w': tensor type IQ2_XXS cannot"):
            file.tensor("w")


def test_a_missing_architecture(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"general\.architecture"):
        _ = file.architecture


def test_the_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    raw = stored("Q8_0", 64, 4)
    path = write(tmp_path / "m.gguf", {"w": ("Q8_0", raw)})
    with GGUFFile(path) as file:
        fingerprint = file.fingerprint()
        assert fingerprint == file.fingerprint()
        end = file.tensors["w"].offset + raw.nbytes
    content = path.read_bytes()
    assert len(fingerprint) == 64
    other = tmp_path / "elsewhere.gguf"
    changed = bytearray(content)
    changed[end - 1] ^= 1
    for data, same in ((content, True), (bytes(changed), False), (content + b"\0", False)):
        other.write_bytes(data)
        with GGUFFile(other) as file:
            assert (file.fingerprint() == fingerprint) is same
    renamed = write(other, {"w": ("Q8_0", raw)}, {"general.name": ("x", gguf.GGUFValueType.STRING)})
    with GGUFFile(renamed) as file:
        assert file.fingerprint() != fingerprint


def test_the_identity_follows_every_write(tmp_path: Path) -> None:
    raw = stored("Q8_0", 512, 4)
    path = write(tmp_path / "m.gguf", {"w": ("Q8_0", raw)})
    time.sleep(0.06)
    with GGUFFile(path) as file:
        identity, fingerprint = file.identity(), file.fingerprint()
        assert identity is not None
        assert identity == file.identity()
        unseen = file.tensors["w"].offset + 1000
    with path.open("r+b") as changing, GGUFFile(path) as file:
        changing.seek(unseen)
        changing.write(bytes([raw.reshape(-1)[1000] ^ 1]))
        changing.flush()
        assert file.identity() is None  # too young
        time.sleep(0.06)
        assert file.fingerprint() == fingerprint
        assert file.identity() not in (None, identity)
    copy = tmp_path / "copy.gguf"
    shutil.copy2(path, copy)
    time.sleep(0.06)
    with GGUFFile(copy) as file, GGUFFile(path) as original:
        assert file.identity() not in (None, original.identity())
    with pytest.raises(GGUFError, match="closed"):
        file.identity()


def test_strings_of_every_kind_in_every_order(tmp_path: Path) -> None:
    """Short ones without zeros are read many at a time; these are mixed with all others."""
    rng = random.Random(0)
    kinds = ["", "\0", "a\0", "\0" * 9, "x" * 255, "x" * 256, "y" * 300_000, "é世", "a", "the"]
    for size in (1, 2, 10, 1000):
        words = [rng.choice(kinds[:6] + kinds[7:]) for _ in range(size)] + ["ab"] * size
        words.insert(rng.randrange(size), kinds[6])
        types = gguf.GGUFValueType
        path = write(tmp_path / "m.gguf", None, {"words": (words, types.ARRAY, types.STRING)})
        with GGUFFile(path) as file:
            assert file.metadata["words"] == words


@pytest.mark.model
def test_the_real_model_opens_and_decodes(smollm2: Path) -> None:
    with GGUFFile(smollm2) as file:
        assert file.architecture == "llama"
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49_152
        assert len(file.metadata["tokenizer.ggml.merges"]) == 48_900
        assert file.tensors["token_embd.weight"].shape == (49_152, 576)
        for name in ("blk.0.attn_norm.weight", "blk.7.attn_k.weight", "token_embd.weight"):
            kind = gguf.GGMLQuantizationType[file.tensors[name].ggml_type]
            wanted = gguf.quants.dequantize(file.raw(name), kind)
            np.testing.assert_array_equal(file.tensor(name), wanted)
