"""looseleaf verify"""

from pathlib import Path

import pytest

from looseleaf.compiled import compiled
from looseleaf.verify.circumstances import CIRCUMSTANCES

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

SHORT = ("--prompt-tokens", "60", "--max-tokens", "6")


def test_the_table(call, tiny_model: Path) -> None:
    out = call("verify", str(tiny_model), *SHORT).out
    for circumstance in CIRCUMSTANCES:
        assert circumstance.name in out
    assert out.count("same") == len(CIRCUMSTANCES) * 7 + 1
    assert "Every bit is the same, on the native executor." in out


def test_json(call, tiny_model: Path) -> None:
    result = call("verify", str(tiny_model), *SHORT, "--json").json
    assert result["passed"] is True
    assert result["executor"] == "native"
    assert [row["name"] for row in result["circumstances"]] == [c.name for c in CIRCUMSTANCES]
    assert all(
        row["differences"] == dict.fromkeys(result["requests"]) for row in result["circumstances"]
    )


def test_soak(call, tiny_model: Path) -> None:
    outcome = call("verify", str(tiny_model), *SHORT, "--soak", "30", "--json")
    assert outcome.json["soak"]["requests"] == 30
    assert outcome.json["soak"]["passed"] is True
    assert "30 requests in" in call("verify", str(tiny_model), *SHORT, "--soak", "30").out


def test_a_prompt_that_is_too_long(call, tiny_model: Path) -> None:
    call("verify", str(tiny_model), "--prompt-tokens", "600").check_refused("596", "512")
