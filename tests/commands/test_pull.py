"""`looseleaf pull`, and the folder that models are kept in."""

from pathlib import Path

import pytest

from looseleaf.weights.source import known_models


def test_the_known_names_are_listed(call) -> None:
    listed = call("pull", "--list", "--json").json
    assert [set(model) for model in listed] == [{"name", "summary", "size"}] * len(listed)
    assert [m["name"] for m in listed] == list(known_models())
    assert listed[0]["name"] == "smollm2-135m"
    assert listed[0]["size"] == 98_362_432
    lines = call("pull", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(known_models())
    assert "93.8 MiB" in lines[0]


def test_a_path_is_where_it_is(call, tiny_model: Path) -> None:
    assert call("pull", str(tiny_model)).out == f"{tiny_model}\n"
    answer = call("pull", str(tiny_model), "--json").json
    size = tiny_model.stat().st_size
    assert answer == {"model": str(tiny_model), "path": str(tiny_model), "size": size}


@pytest.mark.parametrize(
    "arguments",
    [
        ("pull", "tiny", "--json"),
        ("generate", "--model", "tiny", "--prompt", "a", "--max-tokens", "1", "--json"),
        ("tokenize", "--model", "tiny", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_looseleaf_cache_is_where_models_are(
    call, monkeypatch: pytest.MonkeyPatch, downloaded_model: Path, tmp_path: Path, arguments
) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "elsewhere"))
    answer = call(*arguments, stdin=b"a").json
    if arguments[0] == "pull":
        assert answer["path"] == str(downloaded_model)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("value", ["~/elsewhere", None, ""])
def test_the_cache_is_in_the_home_folder(
    call, monkeypatch: pytest.MonkeyPatch, downloaded_model: Path, tmp_path: Path, value
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("LOOSELEAF_CACHE")
    else:
        monkeypatch.setenv("LOOSELEAF_CACHE", value)
    if not value:
        default = tmp_path / ".cache" / "looseleaf"
        default.parent.mkdir()
        (tmp_path / "elsewhere").rename(default)
        downloaded_model = default / downloaded_model.relative_to(tmp_path / "elsewhere")
    assert call("pull", "tiny").out == f"{downloaded_model}\n"


def test_a_path_in_no_known_encoding_is_printed_all_the_same(
    call, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "\udcff.gguf"
    path.write_bytes(tiny_model.read_bytes())
    assert call("pull", str(path)).out.endswith("\\udcff.gguf\n")
    assert call("pull", str(path), "--json").json["path"] == str(path)
