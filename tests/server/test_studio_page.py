"""The studio's page in a real browser, before a running server."""

import threading
from typing import Any

import browser as browsers
import pytest
from studio_page import tile, until

from looseleaf.server.keys import key_ring

pytestmark = pytest.mark.skipif(
    browsers.missing() is not None, reason=f"a browser test needs {browsers.missing()}"
)

NOTHING = "\u2013"
SYSTEM = "You keep the reading room of a small library, and answer briefly. "


def ask(server: Any, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 30, **fields}
    return server.http().post("/v1/chat/completions", json=body)


def test_both_languages_every_view_and_no_serious_fault(start_server: Any, browser: Any) -> None:
    server = start_server()
    for scheme in ("light", "dark"):
        browser("open", f"{server.url}/studio/", {"scheme": scheme, "locale": "zh-CN"})
        browser("wait", "[data-canvas=blocks]")
        ask(server, "hello", n=2)
        assert browser("text", "h1") == "Looseleaf 工作室"
        browser("click", "button[lang=en]")
        assert browser("text", "h1") == "Looseleaf studio"
        assert browser("evaluate", "document.documentElement.lang") == "en"
        for view in ("readers", "dials", "try", "shelf"):
            browser("click", f"a[href='#{view}']")
            threading.Event().wait(0.3)
            assert browser("axe") == []
        browser("click", "button[lang=zh-CN]")
        assert browser("evaluate", "document.documentElement.lang") == "zh-CN"
    browser("open", f"{server.url}/studio/", {"width": 390, "height": 844})
    browser("wait", "[data-canvas=blocks]")
    assert browser("evaluate", "document.documentElement.scrollWidth") <= 390
    assert browser("problems") == []


def test_keys_of_the_keyboard(start_server: Any, browser: Any) -> None:
    server = start_server(num_blocks=64)
    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        browser("press", ".grid", key)
    browser("wait", "[role=tooltip][data-block='2']")
    assert browser("text", ".shelf [aria-live]").startswith("Block 2, free, ref count 0")
    browser("press", "body", " ")
    until(lambda: browser("text", "[role=status]") == "paused", "it stands still")
    ask(server, "hello")
    threading.Event().wait(0.5)
    assert tile(browser, "hits") == NOTHING
    browser("click", "footer button:last-of-type")
    until(lambda: tile(browser, "hits") != NOTHING, "it goes on")


def test_the_key_is_asked_for_and_a_chat_can_be_sent(start_server: Any, browser: Any) -> None:
    server = start_server(keys=key_ring(["secret"]))
    server.http().headers["authorization"] = "Bearer secret"
    browser("open", f"{server.url}/studio/#try")
    browser("fill", "input[type=password]", "wrong")
    browser("click", "form button")
    browser("wait", "input[type=password]")
    browser("fill", "input[type=password]", "secret")
    browser("click", "form button")
    browser("wait", "textarea")
    browser("fill", "input[type=number] >> nth=0", "3")
    browser("fill", "input[type=number] >> nth=1", "20")
    browser("click", "button.primary")
    browser("wait", "[data-answer='2']")
    until(lambda: len(browser("text", "[data-answer='2']")) == 20, "the answer is there")
    until(lambda: browser("count", "[data-reader]") == 1, "its request is chosen")
    # The browser itself tells of answers with 401.
    assert all("401" in problem for problem in browser("problems"))
