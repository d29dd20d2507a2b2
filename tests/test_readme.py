"""README.zh-CN.md says what README.md does: the same commands, programs and figures."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code(text: str) -> list[str]:
    """Lines of blocks of code, without comments, or what goes on from one."""
    lines = [
        re.sub(r"\s+#.*", "", line).rstrip()
        for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    return [line for line in lines if line.strip()]


def figures(text: str) -> list[list[str]]:
    """Of each row of a table, its numbers."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [sorted(re.findall(r"\d+(?:[.,]\d+)*", row)) for row in rows]


def options(text: str) -> set[str]:
    return set(re.findall(r"`(--[^`]*)`", re.sub(r"\s+", " ", text)))


@pytest.mark.parametrize("part", [code, figures, options])
def test_both_languages_say_the_same(part: object) -> None:
    assert callable(part)
    english, chinese = part(read("README.md")), part(read("README.zh-CN.md"))
    assert english
    assert chinese == english


def test_each_leads_to_the_other() -> None:
    assert "(README.zh-CN.md)" in read("README.md")
    assert "(README.md)" in read("README.zh-CN.md")
