"""The studio's page in a real browser, before a server with the real model, beside its own core."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import browser as browsers
import pytest
from running_server import Paced, RunningServer
from studio_page import CACHED, FREE, HELD, SHOWN, colors, number, tile, until

from looseleaf.compiled import compiled
from looseleaf.engine.build import build
from looseleaf.engine.engine import Engine
from looseleaf.engine.settings import EngineSettings
from looseleaf.engine.snapshot import BlockState, snapshot
from looseleaf.engine.usage import usage
from looseleaf.server.context import ServerContext
from looseleaf.server.run import make_server
from looseleaf.studio.frames import HASH_DIGITS
from looseleaf.studio.settings import StudioSettings

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(240),
    pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed"),
    pytest.mark.skipif(
        browsers.missing() is not None, reason=f"a browser test needs {browsers.missing()}"
    ),
]

CHATS = 20
SYSTEM = (
    "You are the reading-room assistant of a small public library. Answer in one or two plain "
    "sentences. Books are lent for three weeks and may be renewed twice. Journals and maps stay in "
    "the house. The library opens at nine and closes at seven, on Saturdays at four."
)
COUNTS = SHOWN.replace("[data-tile]", "[data-tile]:not([data-tile=speed])")
"""Not the speed: a recording ends with the last step, and the server's clock goes on."""

SLOWLY = 0.25
"""Seconds for a step, so that what is looked at does not end meanwhile."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studio") / "run.ndjson"


@pytest.fixture(scope="module")
def server(smollm2_path: Path, recording: Path) -> Iterator[RunningServer]:
    """At the end every block is free or evictable."""
    stack = build(
        EngineSettings(
            model=str(smollm2_path),
            executor="native",
            max_model_len=1024,
            kv_cache_memory="128MiB",
        )
    )
    executor = Paced(stack.engine.executor, 0)
    stack.engine.executor = executor
    studio = StudioSettings(show_text=True, record=recording)
    context = ServerContext.from_stack(stack, ["smollm2"], studio=studio)
    running = RunningServer(context, executor, make_server(context, port=0, shutdown_seconds=5))
    running.start()
    yield running
    running.stop()


def ask(server: RunningServer, question: str) -> int:
    body = {
        "model": "smollm2",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "max_tokens": 40,
        "ignore_eos": True,
    }
    return server.http().post("/v1/chat/completions", json=body).status_code


def figures(engine: Engine) -> tuple[int, int, int]:
    """Of the core: blocks held, blocks saved by sharing, requests that run."""
    allocator = engine.scheduler.allocator
    held = allocator.num_blocks - allocator.num_available
    running = engine.scheduler.running
    return held, usage(allocator, running).blocks_saved, len(running)


def shown(browser: Any) -> tuple[int, ...]:
    return tuple(number(tile(browser, name)) for name in ("blocks", "saved", "running"))


def tooltip(browser: Any, block: int) -> tuple[int, str, str]:
    browser("hoverBlock", block)
    browser("wait", f"[role=tooltip][data-block='{block}']")
    refs, name, tokens = (browser("text", f"[data-field={f}]") for f in ("refs", "hash", "tokens"))
    return int(refs), name, tokens


def told(state: BlockState) -> tuple[int, str, str]:
    """What the tooltip is to say of a block that nobody holds."""
    name = state.hash.hex()[:HASH_DIGITS] if state.hash else "not findable"
    return state.ref_count, name, f"{state.num_tokens} of 16"


def blocks_by_color(server: RunningServer, blocks: list[int]) -> list[str]:
    """What colours blocks are to have that nobody holds, by what can be found in them."""
    states = server.call(lambda engine: snapshot(engine.scheduler)).blocks
    assert not any(states[block].ref_count for block in blocks)
    return [CACHED if states[block].hash else FREE for block in blocks]


def test_twenty_chats_that_share_a_prefix(server: RunningServer, browser: Any) -> None:
    server.executor.seconds = 0.1
    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    with ThreadPoolExecutor(CHATS) as pool:
        answers = [pool.submit(ask, server, f"What is {i} plus {i}?") for i in range(CHATS)]
        until(lambda: tile(browser, "running") == str(CHATS), "all of them run")
        server.executor.seconds = SLOWLY
        tables = server.call(lambda engine: engine.scheduler.allocator.tables())
        first = next(iter(tables.values()))[0]
        assert all(table[0] == first for table in tables.values())
        assert tooltip(browser, first)[0] == CHATS
        assert browser("text", "[role=tooltip] p").startswith("<|im_start|>system")
        assert browser("colorsOf", [first]) == [HELD[4]]
        until(lambda: shown(browser) == server.call(figures), "the tiles tell what the core does")
        assert shown(browser)[1] >= (CHATS - 1) * (len(SYSTEM.split()) // 16)

        def as_metrics() -> bool:
            metrics = [
                server.metric("looseleaf_kv_blocks", state="held"),
                server.metric("looseleaf_kv_blocks_saved"),
                server.metric("vllm:num_requests_running"),
            ]
            return list(shown(browser)) == metrics

        until(as_metrics, "and what /metrics does")
        server.executor.seconds = 0
        assert {answer.result() for answer in answers} == {200}
    until(lambda: shown(browser) == (0, 0, 0), "all have ended")
    hits = server.metric("vllm:prefix_cache_hits_total")
    asked = server.metric("vllm:prefix_cache_queries_total")
    assert tile(browser, "hits") == f"{100 * hits / asked:.1f}%"
    states = server.call(lambda engine: snapshot(engine.scheduler)).blocks
    cached = [state for state in states if state.hash is not None]
    assert len(cached) == server.metric("looseleaf_kv_blocks", state="evictable")
    partial = next(state for state in cached if state.num_tokens < 16)
    empty = next(state for state in states if state.hash is None)
    for state in (states[first], cached[-1], partial, empty):
        assert tooltip(browser, state.block_id) == told(state)
    assert browser("problems") == []


def test_four_samples_copy_and_a_stopped_one_leaves_its_blocks(
    server: RunningServer, browser: Any
) -> None:
    server.executor.seconds = 0.1
    before = server.metric("looseleaf_kv_copies_on_write_total")
    browser("open", f"{server.url}/studio/#try")
    browser("wait", "textarea")
    browser("fill", "textarea >> nth=1", "Tell a long story about a lighthouse and its keeper.")
    browser("fill", "input[type=number] >> nth=0", "4")
    browser("fill", "input[type=number] >> nth=1", "400")
    browser("click", "form button.primary")
    until(lambda: tile(browser, "running") == "4", "four samples run")
    until(lambda: browser("count", "[role=treeitem][data-refs='1']") == 4, "each has its own")
    server.executor.seconds = SLOWLY
    tables = server.call(lambda engine: engine.scheduler.allocator.tables())
    first = next(iter(tables.values()))[0]
    assert len(tables) == 4
    copies = server.metric("looseleaf_kv_copies_on_write_total")
    assert copies - before >= 3  # and one more where a part of a block was found stored
    until(
        lambda: f"Copies on write {copies:.0f}" in browser("text", "[data-tile=hits] .sub"),
        "its copies",
    )
    assert tooltip(browser, first)[0] == 4
    owners = browser("text", "[data-field=owners]")
    assert all(f"{name} as block 0" in owners for name in tables)
    browser("click", "a[href='#shelf']")
    browser("wait", "[data-canvas=blocks]")
    assert colors(browser, [first]) == [HELD[2]]
    browser("click", "a[href='#try']")
    browser("click", "[data-stop]")
    until(lambda: shown(browser) == (0, 0, 0), "nobody holds a block")
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 4
    browser("click", "a[href='#shelf']")
    browser("press", ".grid", "Escape")
    blocks = sorted({block for table in tables.values() for block in table})
    assert colors(browser, blocks) == blocks_by_color(server, blocks)
    assert browser("problems") == []


def test_the_recording_and_the_exported_page_show_the_same_in_both_languages(
    server: RunningServer, recording: Path, browser: Any, tmp_path: Path
) -> None:
    server.executor.seconds = 0
    assert ask(server, "When does the library close?") == 200
    server.check_idle()
    blocks = range(200)
    page = tmp_path / "moment.html"
    browser("open", f"{server.url}/studio/", {"locale": "zh-CN"})
    browser("wait", "[data-canvas=blocks]")
    assert browser("text", "h1") == "Looseleaf 工作室"
    assert browser("text", "[data-tile=hits] dt") == "前缀命中率"
    browser("click", "button[lang=en]")
    assert browser("text", "h1") == "Looseleaf studio"
    picture = colors(browser, blocks)
    assert {CACHED, FREE} <= set(picture)
    browser("press", "body", " ")
    tiles, counts = browser("evaluate", SHOWN), browser("evaluate", COUNTS)
    browser("click", "button.open")
    browser("download", "[data-action=export]", str(page))
    assert browser("problems") == []

    browser("open", f"{server.url}/studio/")
    browser("wait", "[data-canvas=blocks]")
    browser("choose", "input[type=file]", str(recording))
    until(lambda: browser("text", "[role=status]") == "recording", "it is played")
    assert browser("evaluate", COUNTS) == counts
    assert colors(browser, blocks) == picture
    assert browser("problems") == []

    browser("open", page.as_uri())
    browser("wait", "[data-canvas=blocks]")
    assert browser("evaluate", SHOWN) == tiles
    assert colors(browser, blocks) == picture
    browser("click", "button[lang=zh-CN]")
    assert browser("text", "[role=status]") == "导出的页面"
    assert browser("problems") == []
