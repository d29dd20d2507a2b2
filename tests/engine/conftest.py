"""The tiny model on each executor of this installation."""

from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM
from looseleaf.compiled import compiled

EXECUTORS = ["reference"] + ([] if compiled() is None else ["native"])


@pytest.fixture(params=EXECUTORS)
def make_llm(tiny_model: Path, request: pytest.FixtureRequest) -> Any:
    made: list[LLM] = []

    def make(**settings: Any) -> LLM:
        made.append(LLM(str(tiny_model), executor=request.param, **settings))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
