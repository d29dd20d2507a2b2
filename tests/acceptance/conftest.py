"""The real model, loaded once, with as many engines around it as a test needs."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from serving import SECONDS, Served, serving

from looseleaf import LLM
from looseleaf.core import invariants
from looseleaf.engine.build import LoadedText, load_text
from looseleaf.models.config import ModelConfig
from looseleaf.models.load import load_program, load_weights
from looseleaf.weights.gguf import GGUFFile

MakeLLM = Callable[..., LLM]


@dataclass(frozen=True)
class Loaded:
    path: Path
    text: LoadedText
    config: ModelConfig
    weights: dict[str, NDArray[np.float32]]

    def llm(self, *, num_blocks: int | None = None, **settings: Any) -> LLM:
        """`LLM(...)` around the text and the weights that are there already, on the reference
        executor."""
        settings["executor"] = "reference"
        if num_blocks is not None:
            bytes_per_token = self.config.kv_bytes_per_token(4)
            size = settings.get("block_size", 16) * bytes_per_token
            settings["kv_cache_memory"] = num_blocks * size
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("looseleaf.engine.build.load_text", lambda *_: self.text)
            patch.setattr("looseleaf.engine.build.load_weights", lambda *_: self.weights)
            return LLM(str(self.path), **settings)


@pytest.fixture(scope="session")
def loaded(smollm2_path: Path) -> Loaded:
    with GGUFFile(smollm2_path) as file:
        config, program = load_program(file)
        weights = load_weights(file, config, program)
        return Loaded(smollm2_path, load_text(file), config, weights)


@pytest.fixture
def make_llm(loaded: Loaded) -> Iterator[MakeLLM]:
    """Makes an LLM with `EngineSettings`, or `num_blocks`; at the end all its bookkeeping must add
    up and every block be free or evictable."""
    llms: list[LLM] = []

    def make(**settings: Any) -> LLM:
        llms.append(loaded.llm(**settings))
        return llms[-1]

    yield make
    for llm in llms:
        scheduler = llm.engine.scheduler
        invariants.check(scheduler)
        assert not scheduler.has_work
        assert scheduler.allocator.num_available == scheduler.allocator.num_blocks
        llm.close()


@pytest.fixture(scope="session")
def greedy_cases(shared_dir: Path) -> list[dict[str, Any]]:
    cases = json.loads((shared_dir / "oracle" / "smollm2-greedy.json").read_text())["cases"]
    assert len(cases) == 12
    return list(cases)


@pytest.fixture(scope="session")
def tokenize_oracle(shared_dir: Path) -> dict[str, Any]:
    return dict(json.loads((shared_dir / "oracle" / "smollm2-tokenize.json").read_text()))


@pytest.fixture(scope="session")
def model_server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For the clients of all APIs, one after the other; at the end it stops as asked, and none of
    them made it log an error."""
    log = tmp_path_factory.mktemp("clients") / "log"
    with serving(
        log,
        *("--max-model-len", "2048", "--kv-cache-memory", "200MiB"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ) as served:
        yield served
        served.process.terminate()
        assert served.process.wait(SECONDS) == 0
    said = log.read_text()
    assert "Traceback" not in said
    assert " ERROR " not in said
