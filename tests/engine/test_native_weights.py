"""Starts of the native executor: the first packs, the others map, all answer alike."""

import hashlib
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import HEAD_DIM, write_tiny_model

from looseleaf import LLM, SamplingParams
from looseleaf.compiled import compiled
from looseleaf.engine import native_weights
from looseleaf.executors.native import native_module
from looseleaf.executors.packed_weights import PACKED_TYPES, pack
from looseleaf.models.load import RAW_WEIGHTS_VERSION, load_program
from looseleaf.models.registry import architecture
from looseleaf.program.program import RawWeight
from looseleaf.weights.ggml_types import TYPES_BY_NAME
from looseleaf.weights.gguf import GGUFFile

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def settled(path: Path) -> Path:
    """A file is not trusted to stay as it is until its time stamp is a little old."""
    time.sleep(0.06)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return settled(write_tiny_model(tmp_path / "tiny.gguf"))


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets a 1 for each weight that is packed."""
    done: list[int] = []

    def counting(*arguments: Any) -> Any:
        done.append(1)
        return pack(*arguments)

    monkeypatch.setattr(native_weights, "pack", counting)
    return done


def answer(model: Path, cache_dir: Path | None, **settings: Any) -> tuple[int, ...]:
    with LLM(
        str(model), executor="native", kv_cache_memory=2**20, cache_dir=cache_dir, **settings
    ) as llm:
        (output,) = llm.generate("hello there", GREEDY)
    return output.outputs[0].token_ids


def cached(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / native_weights.FOLDER).glob("*.looseleaf-weights"))


def test_a_second_start_maps_and_answers_alike(
    model: Path, cache_dir: Path, packings: list[int]
) -> None:
    in_memory = answer(model, cache_dir, cache_weights=False)
    assert not cache_dir.exists()
    first = answer(model, cache_dir)
    count = len(packings)
    assert len(cached(cache_dir)) == 1
    assert answer(model, cache_dir) == first == in_memory
    assert len(packings) == count


def test_a_model_changed_in_place_is_never_mistaken(
    tmp_path: Path, model: Path, cache_dir: Path, packings: list[int]
) -> None:
    """Only weights differ, all headers are the same."""
    first = answer(model, cache_dir)
    count = len(packings)
    other = write_tiny_model(tmp_path / "other.gguf", seed=1).read_bytes()
    assert len(other) == model.stat().st_size
    with model.open("r+b") as file:
        file.write(other)
    settled(model)
    second = answer(model, cache_dir)
    assert len(packings) == 2 * count
    assert second == answer(model, None, cache_weights=False) != first
    assert len(cached(cache_dir)) == 1


def test_a_file_that_has_just_been_written_is_packed_in_memory(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in the same tick of the clock would not show in its time stamp."""
    path = write_tiny_model(tmp_path / "new.gguf")
    monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns)
    assert answer(path, cache_dir) == answer(path, None, cache_weights=False)
    assert not cached(cache_dir)


def test_another_layout_is_packed_anew(
    model: Path, cache_dir: Path, packings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(model, cache_dir)
    count = len(packings)
    monkeypatch.setattr(native_module(), "LAYOUT_VERSION", 10**6)
    answer(model, cache_dir)
    assert len(packings) == 2 * count
    monkeypatch.setattr(native_weights, "RAW_WEIGHTS_VERSION", 10**6)
    answer(model, cache_dir)
    assert len(packings) == 3 * count
    assert len(cached(cache_dir)) == 1


def test_a_damaged_cache_is_said_and_mended(
    model: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = answer(model, cache_dir)
    (path,) = cached(cache_dir)
    path.write_bytes(path.read_bytes()[:-64])
    with caplog.at_level(logging.WARNING):
        assert answer(model, cache_dir) == first
    assert "packing again" in caplog.text
    caplog.clear()
    assert answer(model, cache_dir) == first
    assert not caplog.records


def test_two_processes_at_once(model: Path, cache_dir: Path) -> None:
    command = [
        *(sys.executable, "-m", "looseleaf", "generate", "--model", str(model)),
        *("--executor", "native", "--kv-cache-memory", "1MiB", "--max-tokens", "8"),
        *("--prompt", "hello", "--ignore-eos"),
    ]
    processes = [
        subprocess.Popen(
            command,
            env={"LOOSELEAF_CACHE": str(cache_dir)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    outcomes = [process.communicate(timeout=60) for process in processes]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == b""
    assert len(cached(cache_dir)) == 1


def rows_of(source: str, n: int, k: int) -> np.ndarray:
    """Bytes that make finite numbers whatever the type: no f16 is infinite."""
    layout = TYPES_BY_NAME[source]
    nbytes = n * k // layout.block_size * layout.type_size
    rows = (np.arange(nbytes) * 7 % 59).astype(np.uint8).reshape(n, -1)
    return rows.view(np.float32) if source == "F32" else rows


PACKED = {
    "F32": "5c4a4f7cd158a81a",
    "F16": "660de505644db3d0",
    "Q4_0": "caf113bab745863f",
    "Q4_1": "28824069c2ad1187",
    "Q4_K": "152d8d26ff2dd1bb",
    "Q5_0": "d5694bbed8a3db5f",
    "Q5_1": "13d5f32a6dd567bc",
    "Q5_K": "b505b94453e703b8",
    "Q6_K": "c7bc10628ec19ed5",
    "Q8_0": "6e7d111b2123f797",
}
"""How the SHA-256 begins of what 13 rows of 512 inputs become."""


@pytest.mark.parametrize("source", PACKED_TYPES)
def test_layouts_on_disk_are_those_of_this_version(source: str) -> None:
    """If this fails, packed weights of before would be read wrongly: raise kLayoutVersion in
    native/weights.h, and put the new digest here. A new type only needs a digest."""
    weight = RawWeight(source, (13, 512), rows_of(source, 13, 512))
    digest = hashlib.sha256(pack(native_module(), weight, 2).data.tobytes()).hexdigest()
    assert (native_module().LAYOUT_VERSION, digest[:16]) == (1, PACKED[source])


def test_rows_on_disk_are_in_the_order_of_this_version(model: Path) -> None:
    """If this fails, raise RAW_WEIGHTS_VERSION in models/load.py, and put the new order here."""
    with GGUFFile(model) as file:
        config, _ = load_program(file)
    rows = np.arange(2 * HEAD_DIM)[:, None]
    from_gguf = architecture("llama").from_gguf
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for name in ("attn_k.weight", "attn_v.weight", "ffn_up.weight"):
        found = from_gguf(f"blk.0.{name}", rows, config)[:, 0].tolist()
        turned = [*order, *(HEAD_DIM + i for i in order)]
        assert found == (turned if name == "attn_k.weight" else list(range(2 * HEAD_DIM)))
    assert RAW_WEIGHTS_VERSION == 1
