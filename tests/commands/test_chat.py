"""`looseleaf chat`: a conversation in the terminal, or piped in."""

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM, SamplingParams

GREEDY = ("--max-tokens", "6", "--temperature", "0", "--ignore-eos")
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def chat(call, tiny_model: Path) -> Any:
    def run(*options: str, **given: Any) -> Any:
        return call("chat", "--model", str(tiny_model), *GREEDY, *options, **given)

    return run


@pytest.fixture(scope="module")
def answers(tiny_model: Path) -> list[str]:
    """What the offline API says in a conversation of two turns, after a system message."""
    messages = [{"role": "system", "content": "Be kind."}]
    texts = []
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        for question in ("hello", "and you?"):
            messages.append({"role": "user", "content": question})
            (output,) = llm.chat(messages, PARAMS)
            texts.append(output.outputs[0].text)
            messages.append({"role": "assistant", "content": texts[-1]})
    return texts


@pytest.mark.parametrize(
    "lines",
    [
        b"hello\nand you?\n",
        b"hello\nand you?",
        b"hello\r\nand you?\r\n",
        b"\nhello\n \n\nand you?\n",
    ],
)
def test_each_line_is_a_turn_of_one_conversation(chat, answers: list[str], lines: bytes) -> None:
    outcome = chat("--system", "Be kind.", stdin=lines)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "".join(f"{answer}\n" for answer in answers)


def test_later_turns_reuse_the_earlier_ones(chat) -> None:
    outcome = chat("--verbose", stdin=b"hello\nand you?\nbye\n")
    turns = [
        tuple(map(int, turn))
        for turn in re.findall(
            r"\[(\d+) prompt tokens, (\d+) of them reused; (\d+) generated\]\n", outcome.err
        )
    ]
    assert len(turns) == outcome.err.count("\n") == 3
    assert turns[0][1] == 0
    for before, after in itertools.pairwise(turns):
        assert before[0] <= after[1] < after[0]
    assert [generated for *_, generated in turns] == [6, 6, 6]


def test_no_line_is_no_turn(chat) -> None:
    for nothing in (b"", b"\n", b" \r\n"):
        outcome = chat(stdin=nothing)
        assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize("end", ["", "\n", "  \n"], ids=["ctrl-d", "empty", "blank"])
def test_a_person_is_asked_until_an_empty_line_or_the_end(
    chat, answers: list[str], end: str
) -> None:
    typed = f"hello\nand you?\n{end}".encode()
    outcome = chat("--system", "Be kind.", stdin=typed, terminal=True)
    assert (outcome.status, outcome.err) == (0, "")
    prompt = "> "
    assert outcome.out.rstrip("\n") == (
        f"{prompt}{answers[0]}\n{prompt}{answers[1]}\n{prompt}".rstrip("\n")
    )


def test_a_line_that_is_no_text_ends_it_after_the_answers_so_far(chat, answers) -> None:
    outcome = chat("--system", "Be kind.", stdin=b"hello\nand \xff you?\n")
    outcome.check_refused("a line of standard input is not UTF-8", "byte 4")
    assert outcome.out == f"{answers[0]}\n"


def test_a_conversation_that_outgrows_the_context_says_so(chat) -> None:
    outcome = chat("--max-model-len", "64", stdin=b"hello\nhello\nhello\n")
    outcome.check_refused("prompt", "at most 64")
    assert outcome.out.count("\n") == 1


def test_a_person_may_go_on_with_something_shorter(chat) -> None:
    typed = b"hello\n" + b"x" * 100 + b"\nx\n"
    outcome = chat("--max-model-len", "80", "--max-tokens", "1", stdin=typed, terminal=True)
    assert outcome.status == 0
    assert outcome.err.count("\n") == 1
    assert "at most 80" in outcome.err
    assert outcome.out.count("> ") == 4


def test_ctrl_c_on_a_terminal_ends_the_answer_and_not_the_chat(
    start: Any, roomy_model: Path
) -> None:
    terminal, keyboard = os.openpty()
    try:
        process = start(
            *("chat", "--model", str(roomy_model), "--max-tokens", "1900", "--ignore-eos"),
            *("--temperature", "1", "--seed", "1", "--verbose"),
            stdin=keyboard,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        os.write(terminal, b"hello\n")
        assert process.stdout.read(3)[:2] == b"> "
        process.send_signal(signal.SIGINT)
        while b"prompt tokens" not in (line := process.stderr.readline()):
            assert line
        assert int(line.split(b"; ")[1].split()[0]) < 1900
        os.write(terminal, b"\n")
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
    finally:
        os.close(terminal)
        os.close(keyboard)


def test_a_real_process_talks(spawn, tiny_model: Path, answers: list[str]) -> None:
    outcome = spawn(
        *("chat", "--model", str(tiny_model), *GREEDY, "--system", "Be kind."),
        stdin=b"hello\nand you?\n",
    )
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "".join(f"{answer}\n" for answer in answers)
