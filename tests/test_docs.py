"""Links in the documents lead somewhere, pictures are there, and figures are the code's."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from looseleaf.demo.waste import single_run
from looseleaf.planner.models import load_shape

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXPLANATIONS = [ROOT / "docs" / f"paged-attention{end}.md" for end in ("", ".zh-CN")]
PICTURES = ROOT / "docs" / "pictures"

LINK = re.compile(r"(?:\]\(|<img src=\")([^)\s\"]+)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(document: Path) -> list[str]:
    return LINK.findall(FENCED.sub("", document.read_text(encoding="utf-8")))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{document.name} links to {link}: no such heading"


def test_both_languages_show_the_same_pictures() -> None:
    shown = [
        re.findall(r"pictures/\w+/([\w-]+\.png)", document.read_text(encoding="utf-8"))
        for document in EXPLANATIONS
    ]
    assert shown[0] == shown[1]
    assert len(shown[0]) >= 10
    for language in ("en", "zh"):
        there = sorted(path.name for path in (PICTURES / language).iterdir())
        assert there == sorted(shown[0]), f"pictures of {language} that no document shows, or lacks"
    assert sum(path.stat().st_size for path in PICTURES.rglob("*.png")) < 4 << 20


def test_what_the_explanation_counts() -> None:
    token = load_shape("HuggingFaceTB/SmolLM2-135M").kv_bytes_per_token("f16")
    large = load_shape("meta-llama/Meta-Llama-3-8B").kv_bytes_per_token("f16")
    assert (token, large) == (23_040, 128 * 1024)
    one_draw = single_run(1000, 37)
    figures = [
        f"{token:,.0f}",
        f"{large // 1024:.0f} KiB",
        f"{one_draw['contiguous']:.0%}",
        f"{one_draw['power_of_two']:.0%}",
        f"{one_draw['paged']:.1%}",
        f"{one_draw['concurrency']:.1f}",
    ]
    for document in EXPLANATIONS:
        text = document.read_text(encoding="utf-8")
        for figure in figures:
            assert figure in text, f"{document.name} does not tell {figure}"
