"""Choosing and getting files from the Hugging Face hub, with a scripted library."""

import sys
import types
from pathlib import Path

import pytest

from looseleaf.weights.errors import SourceError
from looseleaf.weights.hub import choose_file
from looseleaf.weights.source import resolve


def fake_hub(monkeypatch: pytest.MonkeyPatch, files: list[str]) -> list[tuple[str, str]]:
    asked: list[tuple[str, str]] = []

    def download(repository: str, filename: str) -> str:
        asked.append((repository, filename))
        if filename not in files:
            raise RuntimeError(f"404: {filename}\nwith much detail")
        return f"/hub/{filename}"

    hub = types.ModuleType("huggingface_hub")
    monkeypatch.setattr(hub, "list_repo_files", lambda repository: files, raising=False)
    monkeypatch.setattr(hub, "hf_hub_download", download, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return asked


def test_files_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "README.md"])
    assert resolve("hf:org/repo") == Path("/hub/m-Q4_K_M.gguf")
    assert resolve("hf:org/repo:q8_0") == Path("/hub/m-Q8_0.gguf")
    assert resolve("hf:org/repo:m-Q8_0.gguf") == Path("/hub/m-Q8_0.gguf")
    assert {repository for repository, _ in asked} == {"org/repo"}
    with pytest.raises(SourceError, match=r"cannot get x\.gguf of org/repo .*: 404: x\.gguf\. "):
        resolve("hf:org/repo:x.gguf")


@pytest.mark.parametrize("name", ["hf:", "hf:repo", "hf:a/b/c", "hf:../b", "hf:a/b c", "hf:a/"])
def test_bad_repositories(name: str) -> None:
    with pytest.raises(SourceError, match="is not of the form hf:ORG/REPO"):
        resolve(name)


@pytest.mark.parametrize("file", ["../../x.gguf", "/etc/x.gguf"])
def test_files_outside_the_repository(file: str) -> None:
    with pytest.raises(SourceError, match="is not the name of a file in org/repo"):
        resolve(f"hf:org/repo:{file}")


def test_without_the_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SourceError, match="pip install huggingface_hub"):
        resolve("hf:org/repo")


@pytest.mark.parametrize(
    ("files", "quantization", "chosen"),
    [
        (["a.gguf", "a.txt"], "", "a.gguf"),
        (["a-f16.gguf", "mmproj-a.gguf"], "", "a-f16.gguf"),
        (["a-q8_0.gguf", "a-f16.gguf"], "", "a-q8_0.gguf"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf"], "", "a-Q8_0.gguf"),
        (["a-Q4_K_M.gguf", "a-Q5_0.gguf"], "Q5_0", "a-Q5_0.gguf"),
    ],
)
def test_choosing_a_file(files: list[str], quantization: str, chosen: str) -> None:
    assert choose_file(files, quantization, "org/repo") == chosen


@pytest.mark.parametrize(
    ("files", "quantization", "message"),
    [
        (["README.md"], "", "org/repo has no .gguf file in one piece"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "", "in one piece"),
        (["a-f16.gguf", "a-q2_k.gguf"], "", r"Q4_K_M or Q8_0 does not .*a-f16\.gguf, a-q2_k"),
        (["a-f16.gguf"], "Q8_0", "Q8_0 does not single one out: write hf:org/repo:FILE"),
    ],
)
def test_no_single_choice(files: list[str], quantization: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        choose_file(files, quantization, "org/repo")
