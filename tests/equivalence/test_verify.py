"""The equivalence harness, on a tiny model and on a real one, and that it can fail."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf.compiled import compiled
from looseleaf.engine.settings import EngineSettings
from looseleaf.executors.native import NativeExecutor
from looseleaf.verify.check import Verifier, difference
from looseleaf.verify.circumstances import CIRCUMSTANCES, Circumstance, together
from looseleaf.verify.recording import Answer

needs_native = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

NAMES = {"greedy", "seeded", "penalised", "constrained", "structured", "n=4", "beams"}


def check(settings: EngineSettings, **sizes: int) -> None:
    verifier = Verifier(settings, **sizes)
    for row in verifier.run():
        assert row.failure is None, row
        assert set(row.differences) == NAMES
        assert row.passed, row


@needs_native
@pytest.mark.parametrize("dtype", ["f32", "f16", "int16"])
def test_nothing_changes_an_answer_of_a_tiny_model(tiny_model: Path, dtype: str) -> None:
    check(EngineSettings(model=str(tiny_model), kv_cache_dtype=dtype), max_tokens=12)


@needs_native
@pytest.mark.model
def test_nothing_changes_an_answer_of_a_real_model() -> None:
    check(EngineSettings(), prompt_tokens=140, max_tokens=8)


def test_the_reference_executor_keeps_its_answers_too(tiny_model: Path) -> None:
    """Its matrix products run in fixed tiles. Threads are not its own to count."""
    settings = EngineSettings(model=str(tiny_model), executor="reference")
    verifier = Verifier(settings, prompt_tokens=60, max_tokens=6)
    rows = list(verifier.run([c for c in CIRCUMSTANCES if "threads" not in c.name]))
    assert [row.name for row in rows if not row.passed] == []


@needs_native
def test_a_logit_that_changes_is_seen(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one logit, where more than one sequence is computed."""
    verifier = Verifier(EngineSettings(model=str(tiny_model)), prompt_tokens=40, max_tokens=4)
    compute = NativeExecutor.logits

    def logits(self: NativeExecutor, step: Any) -> Any:
        rows, batch = compute(self, step)
        if len(batch.ranges) > 1 and len(rows):
            rows[0, 5] = np.nextafter(rows[0, 5], np.float32(100))
        return rows, batch

    monkeypatch.setattr(NativeExecutor, "logits", logits)
    (row,) = verifier.run([Circumstance("together", together)])
    assert not row.passed
    assert any("logits of token" in (found or "") for found in row.differences.values())


@needs_native
def test_what_did_not_happen_is_no_success(tiny_model: Path) -> None:
    verifier = Verifier(EngineSettings(model=str(tiny_model)), prompt_tokens=40, max_tokens=4)
    (preempted,) = (c for c in CIRCUMSTANCES if c.name == "preempted and computed again")
    (row,) = verifier.run([Circumstance("roomy", preempted.run)])
    assert not row.passed
    assert row.failure == "no request was preempted"


def test_differences_are_said_where_they_are() -> None:
    one, two = (5, b"a"), (6, b"b")
    expected = Answer(((one, two),), 0)
    assert difference(expected, expected) is None
    assert difference(expected, Answer(((one, (6, b"c")),), 3)) == "logits of token 1"
    assert difference(expected, Answer((((7, b"a"), two),), 0)) == "token 0: 7, not 5"
    assert difference(expected, Answer(((one,),), 0)) == "1 tokens, not 2"
    both = Answer(((one,), (two,)), 0)
    assert difference(both, Answer(((one,), ((6, b"x"),)), 0)) == "sample 1, logits of token 0"
