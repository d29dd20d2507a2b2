"""The reference executor against the dense model, and what it does with a step."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.core.request import RequestId
from looseleaf.core.step import BlockCopy
from looseleaf.executors.reference import ReferenceExecutor
from looseleaf.executors.rows import InvalidStepError
from looseleaf.sampling.params import SamplingParams

PROMPT = [int(t) for t in np.random.default_rng(5).integers(0, 96, 40)]
BLOCKS = [9, 3, 12, 0, 7, 30, 21, 22, 5, 17, 41, 40]


@pytest.mark.parametrize(
    "variant",
    [{}, {"tied": False}, {"bias": True}, {"rotary_dim": 4}, {"window": 6}],
    ids=lambda v: str(v or "plain"),
)
def test_equals_the_dense_model(
    variant: dict[str, Any], tiny_model: Any, drive: Any, scheduled: Any
) -> None:
    model = tiny_model(**variant)
    driver = drive(model.executor())
    part = scheduled("a", PROMPT, block_ids=BLOCKS[:10], prompt_logprobs=True)
    dense = model.dense_logits(PROMPT)
    logits = driver.logits(part)
    assert logits.shape == dense.shape
    np.testing.assert_allclose(logits, dense, atol=1e-4)


def test_a_long_context_crosses_splits(tiny: Any, drive: Any, scheduled: Any) -> None:
    token_ids = [int(t) for t in np.random.default_rng(6).integers(0, 96, 300)]
    part = scheduled("a", token_ids, block_ids=range(75), prompt_logprobs=True)
    logits = drive(tiny.executor(num_blocks=80)).logits(part)
    np.testing.assert_allclose(logits, tiny.dense_logits(token_ids), atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 3, 7, 40])
def test_c127_a_window_is_the_same_in_prefill_chunks_and_decode(
    chunk: int, tiny_model: Any, drive: Any, scheduled: Any
) -> None:
    model = tiny_model(window=4)
    driver = drive(model.executor())
    rows = [
        driver.logits(
            scheduled(
                "a",
                PROMPT[start : start + chunk],
                start,
                block_ids=BLOCKS[:10] if start == 0 else (),
                prompt_logprobs=True,
            )
        )
        for start in range(0, len(PROMPT), chunk)
    ]
    np.testing.assert_allclose(np.vstack(rows), model.dense_logits(PROMPT), atol=1e-4)


def test_only_wanted_rows_of_logits_are_computed(tiny: Any, drive: Any, scheduled: Any) -> None:
    driver = drive(tiny.executor())
    silent = scheduled("a", PROMPT[:5], block_ids=BLOCKS[:2], params=None)
    drawn = scheduled("b", PROMPT[:6], block_ids=BLOCKS[2:4])
    logits, batch = driver.executor.logits(driver.step(silent, drawn))
    assert logits.shape == (1, 96)
    assert batch.logits_rows.tolist() == [10]
    result = driver.run(scheduled("a", PROMPT[5:7], 5, params=None))
    assert result.tokens == ()
    assert result.prompt_logprobs == ()


def test_results_follow_the_samples_and_the_sequences_that_asked(
    tiny: Any, drive: Any, scheduled: Any
) -> None:
    driver = drive(tiny.executor())
    params = SamplingParams(seed=4, logprobs=3, temperature=2.0)
    result = driver.run(
        scheduled("a", PROMPT[:5], block_ids=BLOCKS[:2], params=None, prompt_logprobs=True),
        scheduled("b", PROMPT[:6], block_ids=BLOCKS[2:4]),
        scheduled(
            "c",
            PROMPT[:7],
            block_ids=BLOCKS[4:6],
            params=params,
            sample_indices=(0, 1, 2),
            prompt_logprobs=True,
        ),
        scheduled(
            "d", PROMPT[:3], block_ids=[50], params=None, prompt_logprobs=True, next_token_id=11
        ),
    )
    assert len(result.tokens) == len(result.logprobs) == 4
    assert result.logprobs[0] is None
    assert [len(scores) for scores in result.prompt_logprobs] == [4, 6, 3]
    dense = tiny.dense_logits(PROMPT[:7])
    assert result.tokens[0] == int(dense[5].argmax())
    logprobs = dense - np.log(np.exp(dense).sum(axis=1, keepdims=True))
    for token, entry in zip(result.tokens[1:], result.logprobs[1:], strict=True):
        assert entry is not None
        assert math.isclose(entry.logprob, logprobs[6][token], abs_tol=1e-5)
        assert [i for i, _ in entry.top] == np.argsort(-logprobs[6])[:3].tolist()
    expected = [logprobs[i][PROMPT[i + 1]] for i in range(6)]
    np.testing.assert_allclose(result.prompt_logprobs[1], expected, atol=1e-5)
    np.testing.assert_allclose(
        result.prompt_logprobs[2], [*expected[:2], logprobs[2][11]], atol=1e-5
    )
    assert [name for name, _ in result.durations] == ["forward", "sample"]
    assert all(seconds >= 0 for _, seconds in result.durations)


def test_c044_prompt_logprobs_of_chunks_join_to_those_of_the_whole(
    tiny: Any, drive: Any, scheduled: Any
) -> None:
    whole = drive(tiny.executor()).run(
        scheduled("a", PROMPT, block_ids=BLOCKS[:10], prompt_logprobs=True)
    )
    driver, joined = drive(tiny.executor()), []
    for start in range(0, 40, 13):
        end = min(40, start + 13)
        result = driver.run(
            scheduled(
                "a",
                PROMPT[start:end],
                start,
                block_ids=BLOCKS[:10] if start == 0 else (),
                params=None,
                prompt_logprobs=True,
                next_token_id=PROMPT[end] if end < 40 else None,
            )
        )
        joined.extend(result.prompt_logprobs[0])
    assert len(joined) == 39
    assert tuple(joined) == whole.prompt_logprobs[0]


def test_copies_come_after_finished_and_before_the_tokens(
    tiny: Any, drive: Any, scheduled: Any
) -> None:
    """Sequence "b" shares a's first block, and gets a copy of its second one to write into."""
    driver = drive(tiny.executor())
    driver.run(scheduled("a", PROMPT[:6], block_ids=[3, 8]))
    other = [*PROMPT[:6], 77]
    logits = driver.logits(
        scheduled("b", [77], 6, block_ids=[3, 20]),
        copies=(BlockCopy(8, 20),),  # type: ignore[arg-type]
        finished=(RequestId("a"),),
    )
    np.testing.assert_allclose(logits[0], tiny.dense_logits(other)[-1], atol=1e-4)
    # The source is as it was: "a" comes back and finds its tokens.
    logits = driver.logits(scheduled("a", [PROMPT[6]], 6, block_ids=[3, 8]))
    np.testing.assert_allclose(logits[0], tiny.dense_logits(PROMPT[:7])[-1], atol=1e-4)


def test_c034_slots_follow_the_block_table(tiny: Any, drive: Any, scheduled: Any) -> None:
    """Several tokens at once from the middle of one scattered block into others."""
    driver = drive(tiny.executor())
    driver.run(scheduled("a", PROMPT[:6], block_ids=[31, 4]))
    logits = driver.logits(scheduled("a", PROMPT[6:19], 6, table_start=2, block_ids=[60, 2, 19]))
    np.testing.assert_allclose(logits[0], tiny.dense_logits(PROMPT[:19])[-1], atol=1e-4)


def test_an_empty_step_gives_an_empty_result(tiny: Any, drive: Any) -> None:
    result = drive(tiny.executor()).run()
    assert (result.tokens, result.logprobs, result.prompt_logprobs) == ((), (), ())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"token_ids": [96], "block_ids": [0]}, "vocabulary has 96"),
        ({"token_ids": [1] * 5, "block_ids": [0]}, "do not fit into its 1 blocks of 4"),
        ({"token_ids": [1], "block_ids": [64]}, "only 64 blocks"),
        ({"token_ids": [1], "block_ids": [0], "table_start": 1}, "only 0 come before"),
        ({"token_ids": [], "block_ids": [0]}, "no tokens"),
        ({"token_ids": [1] * 8, "block_ids": [5, 5]}, "one slot"),
    ],
)
def test_a_step_that_cannot_be_is_refused(
    bad: dict[str, Any], message: str, tiny: Any, drive: Any, scheduled: Any
) -> None:
    token_ids = bad.pop("token_ids")
    with pytest.raises(InvalidStepError, match=message):
        drive(tiny.executor()).run(scheduled("a", token_ids, **bad))


def test_an_op_it_lacks_is_an_error_by_name(tiny: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mixture:
        kind = "mixture"

    program = tiny.program
    strange = dataclasses.replace(program, ops=(*program.ops, Mixture()))
    with pytest.raises(ConfigError, match="does not have the ops mixture"):
        ReferenceExecutor.__init__(object.__new__(ReferenceExecutor), strange, tiny.weights, 4, 4)


def test_missing_and_misshapen_weights_are_errors(tiny: Any) -> None:
    program = tiny.program
    without = {n: w for n, w in tiny.weights.items() if n != "output_norm.weight"}
    with pytest.raises(ConfigError, match=r"output_norm\.weight is missing"):
        ReferenceExecutor(program, without, 4, 4)
    with pytest.raises(ConfigError, match=r"float64 \(32,\)"):
        ReferenceExecutor(program, without | {"output_norm.weight": np.ones(32)}, 4, 4)


def test_c078_padding_ids_are_never_sampled(tiny: Any, drive: Any, scheduled: Any) -> None:
    executor = ReferenceExecutor(tiny.program, tiny.weights, 64, 4, num_valid_tokens=3)
    params = SamplingParams(seed=1, temperature=50, logprobs=5)
    result = drive(executor).run(
        scheduled("a", PROMPT[:5], block_ids=[1, 2], params=params, sample_indices=range(30))
    )
    assert set(result.tokens) == {0, 1, 2}
    assert all(e is not None and {i for i, _ in e.top} == {0, 1, 2} for e in result.logprobs)
