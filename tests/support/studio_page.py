"""What tests read off the studio's page."""

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

HELD = ("#7cc4ee", "#3b93cf", "#0a6bb0", "#07487d", "#032a4d")
"""Colours of blocks by ref count, as web/src/draw/palette.ts says: 1, 2, 3 to 4, 5 to 8, more."""

FREE, CACHED = "#ffffff", "#f3d598"

GLOW_SECONDS = 1.3
"""For which a block that was written, copied or evicted has another colour."""

SHOWN = "[...document.querySelectorAll('[data-tile] dd')].map((e) => e.innerText)"


def until(condition: Callable[[], bool], what: str, tries: int = 400) -> None:
    """Looks 20 times a second, less what looking takes."""
    for _ in range(tries):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"not in time: {what}")


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def tile(browser: Any, name: str) -> str:
    """The figure of one of the tiles, without its unit."""
    text: str = browser("text", f"[data-tile={name}] dd")
    return text.split()[0]


def colors(browser: Any, blocks: Iterable[int]) -> list[str]:
    """Of blocks on the shelf, once nothing glows any more."""
    threading.Event().wait(GLOW_SECONDS)
    found: list[str] = browser("colorsOf", list(blocks))
    return found
