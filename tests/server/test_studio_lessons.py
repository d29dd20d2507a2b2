"""/studio/lessons, and the lessons on the page, in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as browsers
import httpx
import pytest

from looseleaf.server.keys import key_ring
from looseleaf.server.studio import Studio
from looseleaf.server.studio_app import create_studio_app
from looseleaf.studio.lessons.registry import LESSONS, payload_json, scene
from looseleaf.studio.lessons.scene import encode


def test_lessons_are_behind_the_key(start_server: Any) -> None:
    client = start_server(keys=key_ring(["secret"])).http()
    for path in ("/studio/lessons", "/studio/lessons/sharing"):
        assert client.get(path).status_code == 401
    client.headers["authorization"] = "Bearer secret"
    listed = client.get("/studio/lessons").json()
    assert [lesson["name"] for lesson in listed["lessons"]] == list(LESSONS)
    answer = client.get("/studio/lessons/sharing")
    assert answer.content == payload_json("sharing")
    assert answer.headers["content-type"] == "application/json"


async def test_a_lesson_without_a_server_of_models() -> None:
    transport = httpx.ASGITransport(create_studio_app(Studio()))
    async with httpx.AsyncClient(transport=transport, base_url="http://studio/studio/") as client:
        whole = (await client.get("lessons/copies")).json()
        one = await client.get("lessons/copies?n=6")
        assert one.json() in whole["scenes"]
        assert one.content == encode(scene("copies", {"n": "6"}))
        wanted = {"position": "3", "block_size": "8"}
        assert (await client.get("lessons/tables", params=wanted)).json()["values"] == [3, 8]
        for path, status in (
            ("lessons/<b>", 404),
            ("lessons/copies?n=<b>", 400),
            ("lessons/copies?<b>=1", 400),
        ):
            refused = await client.get(path)
            assert refused.status_code == status
            assert "<b>" not in refused.text
        error = (await client.get("lessons/copies?n=7")).json()["error"]
        assert error["message"] == "n must be one of 2, 3, 4, 6, 8"


@pytest.fixture(scope="module")
def browser() -> Iterator[browsers.Browser]:
    found = browsers.Browser()
    yield found
    found.close()


needs_browser = pytest.mark.skipif(
    browsers.missing() is not None, reason=f"a browser test needs {browsers.missing()}"
)


DRAWN = "[...document.querySelectorAll('[data-block]')].map((e) => Object.values(e.dataset))"
"""Blocks, and the reference counts that they are drawn with."""


def numbers(text: str) -> set[int]:
    return {int(digits) for digits in re.findall(r"\d+", text)}


@needs_browser
def test_two_lessons_walked_through_in_both_languages(start_server: Any, browser: Any) -> None:
    server = start_server()
    payload = json.loads(payload_json("sharing"))
    played = next(found for found in payload["scenes"] if found["values"] == [9])
    figures = played["figures"]
    for scheme, locale in (("light", "en"), ("dark", "zh-CN")):
        options = {"scheme": scheme, "locale": locale, "width": 390 if locale == "en" else 1280}
        browser("open", f"{server.url}/studio/#lessons/sharing", options)
        for step in played["steps"]:
            browser("wait", f"[data-step={step['name']}]")
            refs = {str(block): str(count) for block, count, *_ in step["pool"].get("blocks", [])}
            assert {b: n for b, n in browser("evaluate", DRAWN) if b in refs or n != "0"} == refs
            if step["name"] == "count":
                said = numbers(browser("text", "[data-step]"))
                assert {figures["without"], figures["used"]} <= said
                if scheme == "light":
                    assert browser("axe") == []
            browser("press", "body", "ArrowRight")
        wrong = (played["question"]["answer"] + 1) % 4
        for choice in (wrong, played["question"]["answer"]):
            browser("click", f"[data-choice='{choice}']")
            browser("wait", ".right" if choice != wrong else ".wrong")
        assert str(played["question"]["figures"]["before"]) in browser("text", ".why")
        if scheme == "dark":
            assert browser("axe") == []
        assert browser("evaluate", "document.documentElement.scrollWidth") <= options["width"]

    # The other one by its control: each setting has the numbers of its scene.
    browser("click", "button[lang=en]")
    browser("click", "a[href='#lessons/preemption']")
    browser("wait", "[data-lesson=preemption]")
    payload = json.loads(payload_json("preemption"))
    (control,) = payload["controls"]
    browser("press", f"[data-control={control['name']}]", "Home")
    for value, found in zip(control["values"], payload["scenes"], strict=True):
        assert f"The pool has {value} blocks" in browser("text", "[data-step=start]")
        for _ in found["steps"][1:]:
            browser("click", ".say .primary")
        expected = {
            found["figures"][name] for name in ("preemptions", "steps", "computed", "needed")
        }
        assert expected <= numbers(browser("text", "[data-step=cost]"))
        assert browser("text", ".chosen td >> nth=1") == str(found["figures"]["steps"])
        browser("click", ".dot")
        browser("press", f"[data-control={control['name']}]", "ArrowRight")
    assert browser("problems") == []


@needs_browser
def test_a_lesson_opens_from_disk(start_server: Any, browser: Any, tmp_path: Path) -> None:
    server = start_server()
    browser("open", f"{server.url}/studio/#lessons/copies", {"locale": "zh-CN"})
    browser("wait", "[data-lesson=copies]")
    page = tmp_path / "lesson.html"
    browser("download", "[data-action=export-lesson]", str(page))
    there = browser("text", "[data-lesson=copies]")
    browser("open", page.as_uri(), {"locale": "zh-CN"})
    browser("wait", "[data-lesson=copies]")
    assert browser("text", "[data-lesson=copies]") == there
    browser("press", "body", "ArrowRight")
    step = json.loads(payload_json("copies"))["scenes"][0]["steps"][1]["name"]
    browser("wait", f"[data-step={step}]")
    assert (
        browser("evaluate", "document.querySelectorAll('[data-action=export-lesson]').length") == 0
    )
    assert browser("problems") == []
