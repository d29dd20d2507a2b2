"""Try it, the prefix tree and the comparison, in a real browser before a running server."""

import re
from typing import Any

import browser as browsers
import pytest
from studio_page import number, until

from looseleaf.engine.engine import Engine
from looseleaf.engine.usage import usage

pytestmark = pytest.mark.skipif(
    browsers.missing() is not None, reason=f"a browser test needs {browsers.missing()}"
)


SLOWLY = 0.25
"""Seconds for a step, so that what is looked at does not end meanwhile."""


def held(browser: Any) -> int:
    return number(browser("text", "[data-tile=blocks] dd"))


def drawn(browser: Any) -> str:
    """What stands in the tree."""
    text: str = browser("evaluate", "document.querySelector('[role=tree]').textContent")
    return text


def send(browser: Any, samples: int, most: int) -> None:
    browser("fill", "input[type=number] >> nth=0", str(samples))
    browser("fill", "input[type=number] >> nth=1", str(most))
    browser("click", "form button.primary")


def test_four_samples_are_seen_to_share_and_to_copy_and_stopping_frees_their_blocks(
    start_server: Any, browser: Any
) -> None:
    server = start_server(step_seconds=0.1)
    browser("open", f"{server.url}/studio/#try")
    browser("wait", "textarea")
    send(browser, 4, 300)
    until(lambda: browser("count", "[role=treeitem][data-refs='4']") == 1, "four share")
    until(lambda: browser("count", "[role=treeitem][data-refs='1']") == 4, "each has more")
    server.executor.seconds = SLOWLY
    assert server.metric("looseleaf_kv_copies_on_write_total") == 3
    assert "Copies on write 3" in browser("text", "[data-tile=hits] .sub")
    assert all(f"req-0/{i}" in drawn(browser) for i in range(4))
    browser("click", "a[href='#sharing']")
    browser("focus", "[role=treeitem][data-refs='4']")

    def agree() -> bool:
        def saved(engine: Engine) -> tuple[int, int]:
            now = usage(engine.scheduler.allocator, engine.scheduler.running)
            return now.blocks_saved, now.sequence_tokens - now.stored

        blocks, tokens = server.call(saved)
        told = number(browser("text", "[data-tile=saved] dd"))
        shown = int(browser("attribute", ".tree", "data-saved"))
        return bool((blocks, tokens) == (told, shown))

    until(agree, "the tree saves what the core says")
    assert "\u00d74:" in browser("text", ".tree .detail")
    assert browser("axe") == []
    browser("click", "a[href='#try']")
    browser("click", "[data-stop]")
    until(lambda: held(browser) == 0, "no block is held")
    assert browser("attribute", "[data-try='1']", "data-progress") == "stopped"
    until(lambda: "abort" in server.http().get("/metrics").text, "it was an abort")
    assert browser("problems") == []


def test_beams_and_a_clock_that_goes_on_without_traffic(start_server: Any, browser: Any) -> None:
    server = start_server(step_seconds=SLOWLY, next_token=None)
    browser("open", f"{server.url}/studio/#try")
    browser("wait", "textarea")
    browser("select", "[data-decoding]", "beams")
    send(browser, 3, 25)
    until(lambda: browser("count", "[role=treeitem][data-refs='3']") > 0, "beams share")
    assert "/beam-" in drawn(browser)
    server.executor.seconds = 0.0
    until(lambda: browser("count", "[data-try='1'][data-progress=done]") == 1, "the end")
    answers = {browser("text", f"[data-answer='{i}']") for i in range(3)}
    assert len(answers) == 3
    assert all(answers)
    first = float(browser("attribute", "footer input", "max"))
    until(
        lambda: float(browser("attribute", "footer input", "max")) > first + 1,
        "time goes on",
    )
    assert browser("text", "[role=status]") == "live"
    assert browser("problems") == []


def test_a_fork_shares_everything_up_to_where_it_was_made(start_server: Any, browser: Any) -> None:
    server = start_server(step_seconds=0.02)
    browser("open", f"{server.url}/studio/#try")
    browser("wait", "textarea")
    send(browser, 1, 300)
    until(lambda: len(browser("text", "[data-answer='0']")) >= 24, "it says something")
    server.executor.seconds = SLOWLY
    browser("click", "[data-fork='0']")
    browser("fill", "[data-cut]", "20")
    browser("fill", "[data-try='1'] form input[type=number] >> nth=1", "5")
    said = browser("text", "[data-answer='0']")
    browser("click", "[data-fork-send]")
    until(lambda: browser("count", "[data-try='2'][data-progress=done]") == 1, "it goes on")
    assert browser("attribute", "[data-try='1']", "data-progress") == "running"
    text = browser("text", "[data-try='2'] [data-answer='0']")
    begun = browser("text", "[data-try='2'] .begun")
    assert len(begun) >= 20  # pieces may be of several letters
    assert said.startswith(begun)
    assert text.startswith(begun)
    assert len(text) == len(begun) + 5
    # The byte that comes last is computed, for what follows; the others' blocks are the parent's.
    numbers = [
        int(found) for found in re.findall(r"\d+", browser("text", "[data-try='2'] .shared"))
    ]
    blocks, cached, prompt = numbers
    assert cached == prompt - 1
    assert blocks == cached // 4
    browser("click", "[data-try='1'] [data-stop]")
    until(lambda: held(browser) == 0, "no block is held")
    assert browser("problems") == []


def test_more_run_paged_than_contiguous(start_server: Any, browser: Any) -> None:
    server = start_server()
    browser("open", f"{server.url}/studio/#compare", {"width": 390, "height": 844})
    browser("fill", "input[name=rate]", "5")
    browser("fill", "input[name=blocks]", "128")
    browser("fill", "input[name=seconds]", "15")
    browser("click", "form button.primary")
    until(
        lambda: (
            browser("count", "[data-side]") == 2 and browser("count", "form button.primary") == 1
        ),
        "it is computed",
        tries=1800,  # at the lowest priority, whatever else runs
    )
    browser("fill", ".bar input[type=range]", "15")

    def figure(side: str, name: str) -> int:
        return number(browser("text", f"[data-side={side}] [data-figure={name}]"))

    until(lambda: figure("a", "running") > 2 * figure("b", "running"), "more run")
    assert figure("b", "running") == 2
    assert figure("b", "waiting") > figure("a", "waiting")
    assert figure("a", "finished") > figure("b", "finished")
    assert "paged has finished" in browser("text", "[data-verdict]")
    assert browser("evaluate", "document.documentElement.scrollWidth") <= 390
    assert browser("axe") == []
    browser("click", "button[lang=zh-CN]")
    assert "分页" in browser("text", "[data-side=a] h2")
    browser("click", "a[href='#sharing']")
    browser("wait", ".tree")
    assert browser("axe") == []
    assert browser("evaluate", "document.documentElement.scrollWidth") <= 390
    assert browser("problems") == []
