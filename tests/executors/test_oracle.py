"""The real model, token for token, as another implementation computed it in float32."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf.executors.reference import ReferenceExecutor
from looseleaf.models.load import LoadedModel, load_model
from looseleaf.sampling.params import SamplingParams

pytestmark = pytest.mark.model

NUM_TOKENS = 8


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LoadedModel:
    return load_model(smollm2_path)


@pytest.mark.parametrize("name", ["plain-1", "code", "chat-1", "zh", "block-16", "single"])
def test_greedy_tokens_and_prompt_logprobs(
    name: str, model: LoadedModel, shared_dir: Path, drive: Any, scheduled: Any
) -> None:
    cases = json.loads((shared_dir / "oracle" / "smollm2-greedy.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == name)
    prompt = case["prompt_token_ids"]
    table = list(range(40))
    random.Random(name).shuffle(table)
    driver = drive(ReferenceExecutor(model.program, model.weights, 40, 16))
    num_blocks = -(-len(prompt) // 16)
    result = driver.run(
        scheduled(
            "a",
            prompt,
            block_ids=table[:num_blocks],
            params=SamplingParams(temperature=0, logprobs=5),
            prompt_logprobs=True,
        )
    )
    expected = (case["prompt_logprobs"] or [None])[1:]
    np.testing.assert_allclose(result.prompt_logprobs[0], expected, atol=1e-3)
    top = result.logprobs[0].top
    assert [i for i, _ in top] == [i for i, _ in case["first_step_top5"]]
    np.testing.assert_allclose(
        [value for _, value in top], [value for _, value in case["first_step_top5"]], atol=1e-3
    )
    tokens = list(result.tokens)
    while len(tokens) < NUM_TOKENS:
        position = len(prompt) + len(tokens) - 1
        gained = table[num_blocks : position // 16 + 1]
        result = driver.run(
            scheduled("a", tokens[-1:], position, table_start=num_blocks, block_ids=gained)
        )
        num_blocks += len(gained)
        tokens += result.tokens
    assert tokens == case["output_token_ids"][:NUM_TOKENS]
