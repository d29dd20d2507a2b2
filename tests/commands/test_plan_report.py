"""`looseleaf plan --html`, `--chrome-trace`, `--against`: what is written, and how it looks."""

import json
import re
from pathlib import Path
from typing import Any

import browser as browsers
import pytest

from looseleaf.planner.amounts import seconds

MODEL = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "RTX-4090")
SMALL = ("--num-blocks", "150", "--admission-headroom", "0")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crowd, one that can never fit, and a row that is none, in a file with a name to escape."""
    path = tmp_path_factory.mktemp("traces") / "a <b> & c.jsonl"
    rows: list[dict[str, Any]] = [
        {"timestamp": 50 * i, "input_length": 600, "output_length": 60, "hash_ids": [1, 100 + i]}
        for i in range(12)
    ]
    rows.append({"timestamp": 2000, "input_length": 10**6, "output_length": 1, "hash_ids": []})
    path.write_text("\n".join([*map(json.dumps, rows), "{"]))
    return path


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    path = tmp_path / "curves.csv"
    path.write_text("t,running,waiting,kv_cache_pct\n0.5,3,4,80\n1,4,5,90.5\n2,4,1,100\n")
    return path


def test_where_blocks_are_besides_the_cache(call, tmp_path: Path) -> None:
    """Thirty prompts that the cache does not hold, twice; and a page, with what it is like without
    a swap space and a disk."""
    path, page = tmp_path / "talks.jsonl", tmp_path / "plan.html"
    rows = [
        {"timestamp": 1000 * i, "input_length": 2048, "output_length": 4}
        | {"hash_ids": [4 * (i % 30) + part for part in range(4)]}
        for i in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    folder = tmp_path / "kv"
    asked = ("plan", str(path), *MODEL, "--num-blocks", "600", "--compare-allocators", "20")
    tiers = ("--kv-disk", str(folder), "--kv-disk-size", "20GiB", "--swap-space", "1")
    told = call(*asked, *tiers, "--disk-bandwidth", "6,3GB/s", "--html", str(page), "--json").json
    assert not folder.exists()
    disk = told["disk"]
    assert (disk["read_bandwidth"], disk["write_bandwidth"]) == (6e9, 3e9)
    assert (disk["size"], disk["bandwidth_assumed"]) == (20 * 2**30, False)
    assert disk["tokens_loaded"] == 16 * disk["blocks_loaded"] > 10_000
    assert told["summary"]["hit_rate"] > 0.3
    without = next(c for c in told["what_if"]["cases"] if c["change"].startswith("nothing outside"))
    assert without["summary"]["hit_rate"] < 0.1
    for words in ("KV blocks outside the cache", "6 GB/s, writes 3", f"{disk['blocks_loaded']:,}"):
        assert words in page.read_text()
    lines = call(*asked, *tiers, "--replicas", "2", "--compare-allocators", "none").out
    assert re.search(
        r"disk +\d+ blocks loaded .*\(assumed: --disk-bandwidth\).* of 40\.0 GiB", lines
    )
    call(*asked, *tiers, "--disk-bandwidth", "fast").check_refused("like 2 or")


def test_a_page_that_stands_alone(call, trace: Path, curves: Path, tmp_path: Path) -> None:
    page, again, events = (tmp_path / name for name in ("a.html", "b.html", "trace.json"))
    options = (*MODEL, *SMALL, "--against", str(curves), "--what-if", "8", "--rate", "5")
    report = call(
        *("plan", str(trace), *options, "--html", str(page), "--chrome-trace", str(events)),
        "--json",
    ).json
    call("plan", str(trace), *options, "--html", str(again))
    text = page.read_text()
    assert page.read_bytes() == again.read_bytes()  # same trace, same seed
    # Nothing is fetched: no address, no source, and a policy that forbids it.
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bhref=|url\(|@import", text)
    assert "default-src 'none'" in text
    assert "a <b>" not in text
    assert "a &lt;b&gt; &amp; c.jsonl" in text
    # What it says is what --json says.
    held = re.search(r'<script type="application/json" id="report">(.*)</script>', text)
    assert held is not None
    assert json.loads(held[1]) == report
    summary = report["summary"]
    for name, value in (
        ("throughput", f"{summary['output_tokens_per_second']:,.0f}"),
        ("ttft", f"P95 {seconds(summary['ttft']['p95'])},"),
        ("tpot", seconds(summary["tpot"]["p50"])),
        ("hits", f"{100 * summary['hit_rate']:.1f}%"),
        ("preemptions", f"{summary['preemptions']}"),
        ("fits", f"{report['fits']['at_mean']}"),
    ):
        tile = text.partition(f'data-tile="{name}"')[2].partition("</div>")[0]
        assert value in tile, name
    assert report["fits"]["at_mean"] == 150 // -(-report["fits"]["mean_tokens"] // 16)
    assert report["what_if"]["cases"][0]["change"] == "as planned"
    assert (report["what_if"]["requests"], report["what_if"]["of"]) == (8, 13)
    assert [case["allocator"] for case in report["allocators"]["cases"]] == [
        "paged",
        "contiguous-max",
        "contiguous-pow2",
        "contiguous-oracle",
    ]
    assert {one["name"] for one in report["against"]["curves"]} >= {"running", "waiting"}
    for told in (
        "The first 8 of 13 requests",
        "efficiencies are assumptions",
        "Requests that can never fit: 1",
        "is not JSON",
        'class="recorded',
    ):
        assert told in text
    assert len(json.loads(events.read_text())["traceEvents"]) > 100


def test_without_anything_to_show(call, tmp_path: Path) -> None:
    """Every request is refused."""
    trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    trace.write_text('{"timestamp": 0, "input_length": 900000, "output_length": 5}')
    report = call("plan", str(trace), *MODEL, "--html", str(page), "--json").json
    assert report["summary"]["requests"] == 0
    assert "Requests that can never fit: 1" in page.read_text()


def test_in_the_terminal(call, trace: Path, curves: Path) -> None:
    options = ("--what-if", "5", "--compare-allocators", "5", "--against", str(curves))
    out = call("plan", str(trace), *MODEL, *SMALL, *options).out
    for told in ("against curves.csv", "what if (5 of 13", "no prefix caching", "contiguous-pow2"):
        assert told in out
    assert "what if" not in call("plan", str(trace), *MODEL, *SMALL).out


def test_mistakes_are_told_before_the_replay(call, trace: Path, tmp_path: Path) -> None:
    for options, words in (
        (("--html", str(tmp_path / "none" / "a.html")), ("a.html", "folder that exists")),
        (("--chrome-trace", str(tmp_path)), ("cannot be written",)),
        (("--against", str(tmp_path / "no.csv")), ("no.csv", "cannot be read")),
        (("--against-requests", str(trace)), ("pass both",)),
        (("--what-if", "0"), ("--what-if",)),
    ):
        call("plan", str(trace), *MODEL, *options).check_refused(*words)


@pytest.mark.skipif(
    browsers.missing(page=False) is not None,
    reason=f"a browser test needs {browsers.missing(page=False)}",
)
def test_in_a_browser(call, trace: Path, curves: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = (*MODEL, *SMALL, "--against", str(curves), "--what-if", "6")
    call("plan", str(trace), *options, "--html", str(page))
    browser = browsers.Browser()
    over = "document.documentElement.scrollWidth - innerWidth"
    try:
        for width, scheme in ((1280, "light"), (390, "dark")):
            browser("open", page.as_uri(), {"width": width, "height": 800, "scheme": scheme})
            assert browser("evaluate", over) <= 0
            assert browser("axe") == []
            browser(
                "evaluate",
                "document.querySelector('[data-chart=running] .plot').dispatchEvent("
                "new PointerEvent('pointermove', {clientX: innerWidth / 2, bubbles: true}))",
            )
            assert "least to most" in browser("text", "[data-chart=running] .tip")
            assert browser("problems") == []
    finally:
        browser.close()
