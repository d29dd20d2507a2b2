"""The native executor on the real model, next to tokens of a float32 implementation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.compiled import compiled
from looseleaf.core.block_tables import blocks_for
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.engine.build import build
from looseleaf.engine.settings import EngineSettings

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed"),
]

MAX_LEN = 512


def most_likely(path: Path, cases: list[dict[str, Any]], **settings: Any) -> list[list[int]]:
    """For each case, the most likely token in the place of each of its output tokens, given all
    that the oracle has before it."""
    stack = build(
        EngineSettings(
            model=str(path),
            executor="native",
            max_num_seqs=1,
            max_num_batched_tokens=MAX_LEN,
            max_model_len=MAX_LEN,
            **settings,
        )
    )
    executor: Any = stack.engine.executor
    found = []
    for number, (prompt, output) in enumerate(texts(cases)):
        token_ids = prompt + output[:-1]
        table = tuple(map(BlockId, range(blocks_for(len(token_ids), stack.memory.block_size))))
        sequence = ScheduledSequence(
            RequestId(str(number)),
            tuple(token_ids),
            0,
            0,
            table,
            (),
            prompt_logprobs=True,
            next_token_id=output[-1],
        )
        before = () if number == 0 else (RequestId(str(number - 1)),)
        logits, _ = executor.logits(Step(number + 1, (sequence,), finished=before))
        found.append(logits[len(prompt) - 1 :].argmax(axis=1).tolist())
    stack.engine.close()
    return found


def texts(cases: list[dict[str, Any]]) -> Iterator[tuple[list[int], list[int]]]:
    for case in cases:
        yield case["prompt_token_ids"], case["output_token_ids"]


def test_in_float32_every_token_is_the_oracles(
    smollm2_path: Path, greedy_cases: list[dict[str, Any]]
) -> None:
    found = most_likely(smollm2_path, greedy_cases, activations="f32", kv_cache_dtype="f32")
    assert found == [output for _, output in texts(greedy_cases)]


@pytest.mark.parametrize(("dtype", "least"), [("f16", 576), ("int16", 576), ("int8", 560)])
def test_how_keys_and_values_are_kept(
    smollm2_path: Path, greedy_cases: list[dict[str, Any]], dtype: str, least: int
) -> None:
    """The default is the smallest that leaves all tokens as they are: of two bytes a number."""
    found = most_likely(smollm2_path, greedy_cases, activations="f32", kv_cache_dtype=dtype)
    same = sum(
        ours == theirs
        for answer, (_, output) in zip(found, texts(greedy_cases), strict=True)
        for ours, theirs in zip(answer, output, strict=True)
    )
    print(f"{same} of 576 tokens")
    assert same >= least


def test_by_default_most_tokens_are(smollm2_path: Path, greedy_cases: list[dict[str, Any]]) -> None:
    """With 8-bit activations and int16 keys and values; the model is in the file's 4 bits."""
    found = most_likely(smollm2_path, greedy_cases)
    pairs = [
        pair
        for ours, (_, theirs) in zip(found, texts(greedy_cases), strict=True)
        for pair in zip(ours, theirs, strict=True)
    ]
    share = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
    print(f"{share:.1%} of {len(pairs)} tokens")
    assert len(pairs) == 12 * 48
    assert share > 0.9
