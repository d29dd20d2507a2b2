"""`looseleaf cache`, and a cache that a command leaves for the next."""

import json
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli import main
from looseleaf.tiers.block_file import NAME

PROMPT = "a beginning that is long enough for a few blocks of the KV cache, and then some more"


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """With the blocks of a short answer."""
    folder = tmp_path / "kv"
    assert generate(tiny_model, folder, capsys)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0
    }
    return folder


def generate(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["--max-tokens", "4", "--temperature", "0", "--json", "--no-prompt-logprobs"]
    assert (
        main(
            ["generate", "-m", str(model), "--kv-disk", str(folder), *arguments, "--prompt", PROMPT]
        )
        == 0
    )
    return dict(json.loads(capsys.readouterr().out))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["cache", *arguments])
    return status, capsys.readouterr().out


def test_the_next_command_finds_the_blocks(
    folder: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = generate(tiny_model, folder, capsys)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "ls", "--kv-disk", str(folder))
    assert status == 0
    assert "just now" in text
    assert "on disk in" in text
    _, out = run(capsys, "ls", "--kv-disk", str(folder), "--json")
    (model,) = json.loads(out)["models"]
    assert model["num_blocks"] >= 2
    assert model["block_size"] == 16
    assert model["bytes"] > 0


def test_verify_finds_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    status, text = run(capsys, "verify", "--kv-disk", str(folder))
    assert status == 0
    assert "all are whole" in text
    with sqlite3.connect(folder / NAME) as database:
        database.execute("UPDATE content SET data = zeroblob(length(data)) WHERE id = 1")
    database.close()
    status, out = run(capsys, "verify", "--kv-disk", str(folder), "--json")
    found = json.loads(out)
    assert status == 1
    assert found["num_damaged"] == 1
    status, text = run(capsys, "verify", "--kv-disk", str(folder))
    assert status == 0
    assert f"{found['num_blocks'] - 1} blocks read" in text


def test_clear(folder: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "clear", "--kv-disk", str(folder))
    assert status == 0
    assert "blocks removed" in text
    _, out = run(capsys, "ls", "--kv-disk", str(folder), "--json")
    assert json.loads(out)["models"] == []
    assert generate(tiny_model, folder, capsys)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0
    }


def test_a_folder_without_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--kv-disk", str(tmp_path / "none")]) == 2
    assert "looseleaf serve --kv-disk" in capsys.readouterr().err


def test_a_file_that_is_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_bytes(b"something else" * 1000)
    assert main(["cache", "ls", "--kv-disk", str(tmp_path)]) == 2
    assert "is damaged or in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--swap-space", "1MiB", "--no-enable-prefix-caching"], "swap_space keeps blocks"),
        (["--kv-disk", "x", "--kv-allocator", "contiguous-max"], "kv_disk keeps blocks"),
        (["--preemption-mode", "swap"], "set swap_space"),
        (["--preemption-mode", "recompute", "--swap-space", "1"], "no use for swap_space"),
        (["--kv-disk", "x", "--kv-disk-size", "1MiB"], "needs at least 67108864"),
        (["--speculative-ngram", "99"], "speculative_ngram is 99, but it must be between 0"),
    ],
)
def test_settings_that_contradict_each_other(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "-m", str(tiny_model), *options, "--prompt", "hi"]) == 2
    assert message in capsys.readouterr().err
