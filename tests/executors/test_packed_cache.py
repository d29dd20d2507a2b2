"""The folder of packed weights: packed once, found by everybody, never in the way."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from looseleaf.executors.packed_cache import SUFFIX, PackedCache, Weights
from looseleaf.executors.packed_file import DRAFT_SUFFIX
from looseleaf.executors.packed_weights import PackedForm, PackedWeight

FORMS = {"a": PackedForm("vector", 100, 1, 400), "b": PackedForm("vector", 5, 1, 20)}
KEY, OTHER_KEY = "1" * 64, "2" * 64


class Model:
    """A model file that counts how often it is packed."""

    def __init__(self, folder: Path, name: str = "tiny.gguf") -> None:
        self.path = folder / name
        self.path.write_bytes(b"GGUF")
        self.packed = 0
        self.is_current = True

    def pack(self) -> Iterator[tuple[str, PackedWeight]]:
        self.packed += 1
        for number, (name, form) in enumerate(FORMS.items()):
            yield name, PackedWeight(form, np.full(form.nbytes, number, np.uint8))

    def load(self, folder: Path, key: str = KEY) -> Weights:
        found = PackedCache(folder).load(key, self.path, FORMS, self.pack, lambda: self.is_current)
        for number, (name, form) in enumerate(FORMS.items()):
            assert found[name].form == form
            assert found[name].data.tolist() == [number] * form.nbytes
        return found


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def test_packed_once(model: Model, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        model.load(folder)
    assert model.packed == 1
    assert entries(folder) == [f"tiny-{KEY[:16]}{SUFFIX}"]
    assert not caplog.records


def test_a_changed_model_is_packed_again_and_takes_the_place(model: Model, folder: Path) -> None:
    old = model.load(folder)
    model.load(folder, OTHER_KEY)
    assert model.packed == 2
    assert entries(folder) == [f"tiny-{OTHER_KEY[:16]}{SUFFIX}"]
    assert old["b"].data.tolist() == [1] * 20  # whoever has them mapped goes on


def test_two_models_do_not_mind_each_other(model: Model, folder: Path, tmp_path: Path) -> None:
    other = Model(tmp_path, "other.gguf")
    model.load(folder)
    other.load(folder, OTHER_KEY)
    model.load(folder)
    assert (model.packed, other.packed) == (1, 1)
    assert len(entries(folder)) == 2


def test_what_nobody_needs_is_removed(model: Model, folder: Path, tmp_path: Path) -> None:
    gone = Model(tmp_path, "gone.gguf")
    gone.load(folder, OTHER_KEY)
    gone.path.unlink()
    (folder / f"tiny{SUFFIX}{DRAFT_SUFFIX}").write_bytes(b"left behind")
    (folder / f"damaged{SUFFIX}").write_bytes(b"?")
    (folder / "notes.txt").write_text("of somebody else")
    model.load(folder)
    assert entries(folder) == ["notes.txt", f"tiny-{KEY[:16]}{SUFFIX}"]


@pytest.mark.parametrize("damage", ["cut", "empty", "overwritten"])
def test_a_damaged_file_is_written_again(
    model: Model, folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    model.load(folder)
    (entry,) = folder.glob(f"*{SUFFIX}")
    content = entry.read_bytes()
    entry.unlink()
    damaged = {"cut": content[:-1], "empty": b"", "overwritten": b"x" * len(content)}
    entry.write_bytes(damaged[damage])
    model.load(folder)
    assert model.packed == 2
    assert "cannot be used" in caplog.text
    assert entry.read_bytes() == content
    model.load(folder)
    assert model.packed == 2


def test_a_model_that_changed_meanwhile_is_not_kept(
    model: Model, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model.is_current = False
    model.load(folder)
    assert not entries(folder)
    assert "changed while it was read" in caplog.text


def test_a_full_disk(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    model.load(folder)
    assert model.packed == 1
    assert not entries(folder)
    (record,) = caplog.records
    assert "No space left on device" in record.getMessage()


def test_a_folder_that_cannot_be_written(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    model.load(tmp_path / "cache" / "packed")
    assert model.packed == 1
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "packed weights are not kept" in record.getMessage()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(model: Model, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True, mode=0o500)
    model.load(folder)
    assert "Permission denied" in caplog.text


def test_two_that_start_at_once_pack_once(model: Model, folder: Path) -> None:
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def start() -> None:
        try:
            barrier.wait()
            model.load(folder)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert model.packed == 1
