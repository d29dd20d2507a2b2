"""Packed weights on disk: what is found again, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from looseleaf.executors.packed_file import (
    PackedFileError,
    open_packed,
    source_of,
    write_packed,
)
from looseleaf.executors.packed_weights import ALIGNMENT, PackedForm, PackedWeight

FORMS = {
    "embed": PackedForm("q4", 9, 32, 320),
    "norm": PackedForm("vector", 7, 1, 28),
    "down": PackedForm("f32", 8, 3, 96),
}


def weights(seed: int = 0) -> dict[str, PackedWeight]:
    rng = np.random.default_rng(seed)
    return {
        name: PackedWeight(form, rng.integers(0, 256, form.nbytes, np.uint8))
        for name, form in FORMS.items()
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.looseleaf-weights"
    write_packed(path, "key", "/models/tiny.gguf", FORMS, weights().items())
    return path


def test_what_was_written_is_mapped(path: Path) -> None:
    found = open_packed(path, "key", FORMS)
    assert list(found) == list(FORMS)
    for name, (form, data) in weights().items():
        assert found[name].form == form
        assert np.array_equal(found[name].data, data)
        assert found[name].data.ctypes.data % ALIGNMENT == 0
        assert not found[name].data.flags.writeable
    assert source_of(path) == "/models/tiny.gguf"
    assert list(path.parent.iterdir()) == [path]


def test_mapped_weights_outlive_their_file(path: Path) -> None:
    found = open_packed(path, "key", FORMS)
    write_packed(path, "key", "", FORMS, weights(1).items())
    path.unlink()
    assert np.array_equal(found["down"].data, weights()["down"].data)


def test_other_weights_are_refused(path: Path) -> None:
    others = [
        FORMS | {"norm": PackedForm("vector", 6, 1, 24)},
        FORMS | {"embed": PackedForm("q8", 9, 32, 320)},
        FORMS | {"more": PackedForm("vector", 1, 1, 4)},
        {name: FORMS[name] for name in ("norm", "down")},
        {name: FORMS[name] for name in ("norm", "embed", "down")},
    ]
    for forms in others:
        with pytest.raises(PackedFileError, match="other weights"):
            open_packed(path, "key", forms)
    with pytest.raises(PackedFileError, match="other weights"):
        open_packed(path, "another key", FORMS)


def test_a_file_of_any_other_length_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in [*range(0, 600), 4095, 4096, len(content) - 1, len(content) + 1]:
        path.write_bytes((content + b"\0")[:length])
        with pytest.raises(PackedFileError):
            open_packed(path, "key", FORMS)


def test_a_byte_changed_before_the_weights_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    end = content.index(b"]]}") + 3
    for position in range(end):
        damaged = content.copy()
        damaged[position] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(PackedFileError):
            open_packed(path, "key", FORMS)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[str, PackedWeight]]:
        yield "embed", weights()["embed"]
        raise OSError("no more")

    path = tmp_path / "tiny.looseleaf-weights"
    with pytest.raises(OSError, match="no more"):
        write_packed(path, "key", "", FORMS, failing())
    assert not list(tmp_path.iterdir())
