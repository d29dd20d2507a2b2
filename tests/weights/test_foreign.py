"""What is not a GGUF file is called by its name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.weights.gguf import GGUFError, GGUFFile


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GG", "only 2 bytes"),
        ((18).to_bytes(8, "little") + b'{"__metadata__":{}}' + bytes(40), "safetensors"),
        (b"PK\3\4" + bytes(26) + b"archive/data.pkl" + bytes(90), "PyTorch checkpoint"),
        (b"PK\3\4" + bytes(26) + b"model.gguf" + bytes(90), "zip archive"),
        (b"\x80\x02\x8a\nl\xfc\x9c", "pickle"),
        (b"\x1f\x8b\x08\0\0\0", "gzip"),
        (b"\n <!DOCTYPE html><html>", "HTML"),
        (b"<html><body>404", "HTML"),
        (b'{"error": "not found"}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"tjgg\1\0\0\0", "GGJT"),
        (b"lmgg\1\0\0\0", "GGML"),
        (b"what is this?", "something unknown that starts with b'what is '"),
    ],
)
def test_foreign_files_are_recognised(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message):
        GGUFFile(path)


def missing(folder: Path) -> Path:
    return folder / "none.gguf"


def a_folder(folder: Path) -> Path:
    return folder


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.gguf")
    return folder / "pipe.gguf"


def impossible(folder: Path) -> Path:
    return folder / "nul\0.gguf"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [missing, a_folder, a_pipe, impossible])
def test_paths_that_are_no_files(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    assert str(caught.value).startswith(f"{path}: ")
