"""The studio's page in a real browser, before a running server."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import browser as browsers
import pytest

from looseleaf.engine.snapshot import snapshot
from looseleaf.server.keys import key_ring
from looseleaf.studio.frames import HASH_DIGITS
from looseleaf.studio.settings import StudioSettings

pytestmark = pytest.mark.skipif(
    browsers.missing() is not None, reason=f"a browser test needs {browsers.missing()}"
)

NOTHING = "\u2013"
SYSTEM = "You keep the reading room of a small library, and answer briefly. "
HELD = ("#7cc4ee", "#3b93cf", "#0a6bb0", "#07487d", "#032a4d")


@pytest.fixture(scope="module")
def browser() -> Iterator[browsers.Browser]:
    found = browsers.Browser()
    yield found
    found.close()


def until(condition: Callable[[], bool], server: Any, what: str) -> None:
    def holds() -> bool:
        threading.Event().wait(0.05)
        return condition()

    server.eventually(holds, what, seconds=20)


def ask(server: Any, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 30, **fields}
    return server.http().post("/v1/chat/completions", json=body)


def tile(browser: Any, name: str) -> str:
    text: str = browser("text", f"[data-tile={name}] dd")
    return text.split()[0]


def test_twenty_chats_that_share_a_prefix(start_server: Any, browser: Any, tmp_path: Path) -> None:
    recording = tmp_path / "run.ndjson"
    server = start_server(
        num_blocks=512,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        step_seconds=0.02,
        studio=StudioSettings(show_text=True, record=recording),
    )
    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(ask, server, f"Question {i}?", max_tokens=100) for i in range(20)]
        until(lambda: tile(browser, "running") == "20", server, "all 20 run")
        browser("hoverBlock", 1)

        def ref_count() -> int:
            count: int = server.call(lambda e: e.scheduler.allocator.pool.ref_count(1))
            return count

        until(lambda: browser("text", "[data-field=refs]") == str(ref_count()), server, "shared")
        for answer in answers:
            assert answer.result().status_code == 200
    until(lambda: tile(browser, "running") == "0", server, "all have ended")
    now = server.call(lambda engine: snapshot(engine.scheduler))
    assert server.metric("looseleaf_kv_blocks", state="held") == 0
    assert tile(browser, "blocks") == "0"
    hits = server.metric("vllm:prefix_cache_hits_total")
    asked = server.metric("vllm:prefix_cache_queries_total")
    assert tile(browser, "hits") == f"{100 * hits / asked:.1f}%"
    for state in [b for b in now.blocks if b.hash][:3] + [b for b in now.blocks if not b.hash][:1]:
        browser("hoverBlock", state.block_id)
        browser("wait", f"[role=tooltip][data-block='{state.block_id}']")
        assert browser("text", "[data-field=refs]") == str(state.ref_count)
        name = state.hash.hex()[:HASH_DIGITS] if state.hash else "not findable"
        assert browser("text", "[data-field=hash]") == name
        assert browser("text", "[data-field=tokens]") == f"{state.num_tokens} of 4"
    browser("hoverBlock", 1)
    assert browser("text", "[role=tooltip]").endswith("stem")
    picture = {b.block_id: browser("colorOf", b.block_id) for b in now.blocks[:200]}
    server.check_idle()
    assert browser("problems") == []

    # The recording ends with the same picture.
    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    browser("choose", "input[type=file]", str(recording))
    until(lambda: browser("text", "[role=status]") == "recording", server, "it is played")
    assert tile(browser, "hits") == f"{100 * hits / asked:.1f}%"
    threading.Event().wait(0.3)
    assert {b: browser("colorOf", b) for b in picture} == picture
    assert browser("problems") == []


def test_shared_blocks_samples_and_an_abort(start_server: Any, browser: Any) -> None:
    server = start_server(num_blocks=128, step_seconds=0.02)
    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    done = threading.Event()

    def four_samples() -> None:
        body = {"model": "tiny", "prompt": "once upon a time" * 3, "max_tokens": 400, "n": 4}
        with server.http().stream("POST", "/v1/completions", json={**body, "stream": True}) as a:
            for _ in a.iter_lines():
                if done.is_set():
                    return  # and so it is aborted

    thread = threading.Thread(target=four_samples)
    thread.start()
    try:
        until(lambda: tile(browser, "running") == "4", server, "four samples run")
        tables = server.call(lambda e: e.scheduler.allocator.tables())
        first = next(iter(tables.values()))[0]
        browser("hoverBlock", first)
        until(lambda: browser("text", "[data-field=refs]") == "4", server, "four hold it")
        assert browser("colorOf", first) == HELD[2]
        owners = browser("text", "[data-field=owners]")
        assert all(f"{name} as block 0" in owners for name in tables)
        assert server.metric("looseleaf_kv_copies_on_write_total") == 3
        assert "Copies on write 3" in browser("text", "[data-tile=hits] .sub")
        browser("clickHere")
        browser("wait", "[data-reader]")
        assert browser("text", "aside ol li >> nth=0").split()[:2] == ["0", str(first)]
        saved = server.metric("looseleaf_kv_blocks_saved")
        assert tile(browser, "saved") == f"{saved:.0f}"
    finally:
        done.set()
        thread.join(20)
    until(lambda: tile(browser, "blocks") == "0", server, "no block is held")
    threading.Event().wait(1.5)  # what was evicted or written glows for a while
    assert browser("colorOf", first) not in HELD
    assert "abort" in browser("text", "[data-reader]")
    assert browser("problems") == []


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
    until(lambda: browser("text", "[role=status]") == "paused", server, "it stands still")
    ask(server, "hello")
    threading.Event().wait(0.5)
    assert tile(browser, "hits") == NOTHING
    browser("click", "footer button:last-of-type")
    until(lambda: tile(browser, "hits") != NOTHING, server, "it goes on")


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
    until(lambda: len(browser("text", "[data-answer='2']")) == 20, server, "the answer is there")
    until(lambda: browser("count", "[data-reader]") == 1, server, "its request is chosen")
    # The browser itself tells of answers with 401.
    assert all("401" in problem for problem in browser("problems"))
