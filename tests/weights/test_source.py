"""From names to files: paths, folders and the built-in table."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from looseleaf.weights.catalog import KnownModel
from looseleaf.weights.source import SourceError, default_cache_dir, known_models, resolve


def no_pip(command: Sequence[str], on_line: Callable[[str], None]) -> int:
    raise AssertionError(f"pip was not to be called: {command}")


def test_a_known_name_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[KnownModel, Path, object, object]] = []

    def fetch(model: KnownModel, cache_dir: Path, *, progress: object, run: object) -> Path:
        fetched.append((model, cache_dir, progress, run))
        return cache_dir / model.filename

    def progress(done: int, total: int) -> None:
        raise AssertionError("nothing is downloaded")

    monkeypatch.setattr("looseleaf.weights.fetch.fetch", fetch)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()  # a folder of that name does not hide the model
    model = known_models()["smollm2-135m"]
    chosen, default = tmp_path / "cache", tmp_path / "home" / ".cache" / "looseleaf"
    found = resolve(model.name, cache_dir=chosen, progress=progress, run=no_pip)
    assert found == chosen / model.filename
    assert resolve(model.name, run=no_pip) == default / model.filename
    assert fetched == [(model, chosen, progress, no_pip), (model, default, None, no_pip)]


def test_the_table_keeps_inside_the_cache() -> None:
    assert set(known_models()) == {"smollm2-135m", "gemma3-270m"}
    for name, model in known_models().items():
        assert name == model.name
        for component in (model.name, model.filename, *(part.wheel for part in model.parts)):
            assert Path(component).name == component
        for digest in (model.sha256, *(part.sha256 for part in model.parts)):
            assert len(bytes.fromhex(digest)) == 32


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(SourceError, match="choose a cache folder"):
        default_cache_dir()


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.bin").write_bytes(b"x")
    Path("one").mkdir()
    Path("one/a.gguf").write_bytes(b"x")
    Path("one/readme.txt").write_bytes(b"x")
    assert resolve("model.bin") == Path("model.bin")
    assert resolve("one/a.gguf") == Path("one/a.gguf")
    assert resolve("./one") == resolve("one") == Path("one/a.gguf")
    Path("smollm2-135m").write_bytes(b"x")
    assert resolve("smollm2-135m", run=no_pip) == Path("smollm2-135m")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.gguf", r"no file 'missing\.gguf'"),
        ("folder/missing", "no file 'folder/missing'"),
        ("../smollm2-135m", r"no file '\.\./smollm2-135m'"),
        ("two", r"has 2 \.gguf files: a\.gguf, b\.gguf; pass"),
        ("none", r"has no \.gguf file; pass"),
        ("smollm-135m", r"'smollm-135m': did you mean smollm2-135m\?"),
        ("SmolLM2-135M", r"did you mean smollm2-135m\?"),
        ("zzz", "no model is called 'zzz': pass the path.*one of smollm2-135m, gemma3-270m"),
        ("", "name is empty"),
        ("  ", "name is empty"),
        ("nul\0byte", "no model is called"),
        ("x" * 5000, "no model is called"),
        ("~nobody-of-that-name/x.gguf", "no file"),
    ],
)
def test_names_that_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("two/a.gguf", "two/b.gguf", "none/readme.txt"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(b"x")
    with pytest.raises(SourceError, match=message):
        resolve(name, cache_dir=tmp_path / "cache", run=no_pip)
    assert not (tmp_path / "cache").exists()


@pytest.mark.model
def test_the_real_model_needs_no_download(smollm2: Path) -> None:
    path = resolve("smollm2-135m", run=no_pip)
    assert path == smollm2
    assert path.stat().st_size == known_models()["smollm2-135m"].size
