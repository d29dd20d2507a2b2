"""What only a process of its own has: pipes that break, signals, closed streams, an encoding."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60
LONG = ("--max-tokens", "2000", "--ignore-eos", "--temperature", "1", "--seed", "1")


def into_head(process: subprocess.Popen[bytes], *options: str) -> bytes:
    """Pipe the output into `head`, which leaves after the first of it; returns that."""
    try:
        head = subprocess.run(
            ["head", *options], stdin=process.stdout, stdout=subprocess.PIPE, timeout=SECONDS
        )
    finally:
        process.stdout.close()  # `head` was not the only one to hold it open
    return head.stdout


@pytest.mark.parametrize("options", [("-n", "1"), ("-c", "1")], ids=" ".join)
def test_a_reader_that_leaves_ends_a_stream_quietly(
    start: Any, complaints: Any, roomy_model: Path, options: tuple[str, str]
) -> None:
    command = ("generate", "--model", str(roomy_model), "--prompt", "a", *LONG)
    process = start(*command)
    assert into_head(process, *options)
    assert process.wait(SECONDS) == 141
    assert complaints(process.stderr.read()) == ""


def test_a_reader_that_leaves_ends_a_list_quietly(
    start: Any, complaints: Any, tiny_model: Path
) -> None:
    process = start("tokenize", "--model", str(tiny_model))
    process.stdin.write(b"x" * 200_000)
    process.stdin.close()
    assert into_head(process, "-n", "1") == b"     120  'x'\n"
    assert process.wait(SECONDS) == 141
    assert complaints(process.stderr.read()) == ""


@pytest.mark.parametrize("command", ["version", "doctor --no-bandwidth", "pull --list --json"])
def test_no_reader_from_the_start(start: Any, complaints: Any, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*command.split(), stdout=writing)
    os.close(writing)
    assert process.wait(SECONDS) == 141
    assert complaints(process.stderr.read()) == ""


def test_ctrl_c_while_generating_ends_without_a_traceback(
    start: Any, complaints: Any, roomy_model: Path
) -> None:
    process = start("generate", "--model", str(roomy_model), "--prompt", "a", *LONG)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    assert complaints(process.stderr.read()) == ""


def test_ctrl_c_while_chatting_ends_without_a_traceback(
    start: Any, complaints: Any, roomy_model: Path
) -> None:
    process = start("chat", "--model", str(roomy_model), *LONG)
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    assert complaints(process.stderr.read()) == ""


def test_ctrl_c_while_waiting_for_a_line(start: Any, complaints: Any, tiny_model: Path) -> None:
    process = start("chat", "--model", str(tiny_model), "--max-tokens", "2", "--verbose")
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    while b"prompt tokens" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    assert complaints(process.stderr.read()) == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [("version",), ("pull", "--list", "--json")], ids=" ".join)
def test_a_full_disk_is_said_and_not_traced(
    start: Any, complaints: Any, arguments: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb") as full:
        process = start(*arguments, stdout=full)
    assert process.wait(SECONDS) == 2
    error = complaints(process.stderr.read())
    assert error.startswith("looseleaf: error: ")
    assert error.count("\n") == 1


def through_shell(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, timeout=SECONDS
    )


@pytest.fixture
def command(tiny_model: Path, environment: dict[str, str]) -> Any:
    """`generate` in a shell, with redirections after it."""

    def run(options: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        script = f'exec "$PYTHON" -m looseleaf generate --model "$MODEL" --max-tokens 8 {options}'
        more = {"PYTHON": sys.executable, "MODEL": str(tiny_model)} | variables
        return through_shell(script, environment | more)

    return run


def test_a_closed_standard_input_is_an_empty_one(command: Any) -> None:
    done = command("<&-")
    assert done.returncode == 2
    assert done.stderr.decode().endswith("the prompt has no tokens; it must have at least one\n")
    assert b"Traceback" not in done.stderr


def test_closed_outputs_harm_nobody(command: Any) -> None:
    assert command("--prompt hello <&- >&-").returncode == 0
    assert command("--prompt hello <&- >&- 2>&-").returncode == 0
    assert command("--prompt '' <&- >&- 2>&-").returncode == 2


def test_an_encoding_without_the_characters_gets_them_escaped(command: Any) -> None:
    utf8 = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    plain = command("--prompt hello", **utf8)
    escaped = command("--prompt hello", **ascii_only)
    assert escaped.returncode == 0
    text = plain.stdout.decode()
    assert not text.isascii()
    assert escaped.stdout.decode("ascii") == text.encode("ascii", "backslashreplace").decode()
    answers = [command("--prompt hello --json", **v).stdout for v in (utf8, ascii_only)]
    assert answers[1].isascii()
    assert json.loads(answers[0]) == json.loads(answers[1])
    assert json.loads(answers[1])["text"] + "\n" == text
