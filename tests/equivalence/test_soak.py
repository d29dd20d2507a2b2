"""Requests of all kinds on a pool that is far too small."""

from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM
from looseleaf.compiled import compiled
from looseleaf.verify import soak as module
from looseleaf.verify.soak import soak

EXECUTORS = ["reference"] + ([] if compiled() is None else ["native"])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_answer_is_that_of_the_request_alone(
    tiny_model: Path, executor: str, seed: int
) -> None:
    def make(**settings: Any) -> LLM:
        return LLM(str(tiny_model), executor=executor, **settings)

    outcome = soak(make, 250, seed=seed)
    assert outcome.differences == []
    assert outcome.requests == 250
    assert outcome.compared == 250 - outcome.given_up > 200
    assert outcome.given_up > 0
    assert outcome.preemptions > 0
    assert outcome.cached_tokens > 0
    assert outcome.loaded_blocks > 0
    assert outcome.accepted_tokens > 0


def test_a_wrong_answer_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_alone", lambda llm, asked: ((1, 2, 3),))
    outcome = soak(lambda **settings: LLM(str(tiny_model), **settings), 20)
    assert not outcome.passed
    assert "alone ((1, 2, 3),)" in outcome.differences[0]
    assert len(outcome.differences) <= 10
