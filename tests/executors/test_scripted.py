"""The fake executor: right tokens for right steps, and an error or other tokens for wrong ones."""

import random
from typing import Any

import pytest

from looseleaf.core.request import RequestId
from looseleaf.core.step import BlockCopy
from looseleaf.executors.rows import InvalidStepError
from looseleaf.executors.scripted import (
    ScriptedExecutor,
    chain_of,
    expected_logprob,
    expected_token,
    extend_chain,
)
from looseleaf.sampling.params import SamplingParams

PROMPT = [5, 8, 13, 21, 34, 55, 89, 144, 233]


@pytest.fixture
def driver(drive: Any) -> Any:
    return drive(ScriptedExecutor(num_blocks=16, block_size=4))


def copies(*pairs: tuple[int, int]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(*pair) for pair in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 9])
def test_tokens_are_those_of_the_prompt_for_any_chunks(
    chunk: int, driver: Any, scheduled: Any
) -> None:
    for start in range(0, 9, chunk):
        result = driver.run(
            scheduled(
                "a", PROMPT[start : start + chunk], start, block_ids=() if start else [7, 2, 11]
            )
        )
        assert result.tokens == (expected_token(PROMPT[: start + chunk]),)
    token_ids = [*PROMPT, result.tokens[0]]
    result = driver.run(scheduled("a", token_ids[9:], 9))
    assert result.tokens == (expected_token(token_ids),)


def test_a_chain_value_depends_on_all_tokens_and_their_order() -> None:
    assert extend_chain(chain_of([1, 2]), 3) == chain_of([1, 2, 3])
    values = {chain_of(t) for t in ([], [0], [1], [0, 0], [0, 1], [1, 0], [1, 1])}
    assert len(values) == 7


def test_samples_of_one_prompt_differ(driver: Any, scheduled: Any) -> None:
    result = driver.run(
        scheduled("a", PROMPT, block_ids=[0, 1, 2], sample_indices=(0, 1, 2), prompt_logprobs=True)
    )
    assert result.tokens == tuple(expected_token(PROMPT, i) for i in range(3))
    assert len(set(result.tokens)) == 3
    assert result.prompt_logprobs == (
        tuple(expected_logprob(PROMPT[:i], PROMPT[i]) for i in range(1, 9)),
    )


def test_logprobs_are_as_many_as_asked_for(driver: Any, scheduled: Any) -> None:
    params = SamplingParams(logprobs=3, seed=1)
    result = driver.run(
        scheduled("a", PROMPT[:4], block_ids=[0], params=params),
        scheduled("b", PROMPT[:4], block_ids=[1]),
        scheduled(
            "c", PROMPT[:4], block_ids=[2], params=None, prompt_logprobs=True, next_token_id=34
        ),
    )
    first, second = result.logprobs
    assert first is not None
    assert first.top[0] == (result.tokens[0], first.logprob)
    assert len(first.top) == 3
    assert second is None
    assert result.prompt_logprobs[0][-1] == expected_logprob(PROMPT[:4], 34)


def test_the_token_can_be_chosen_and_the_end_token_comes_now_and_then(
    drive: Any, scheduled: Any
) -> None:
    chosen = drive(ScriptedExecutor(4, 4, lambda request_id, position: len(request_id) + position))
    assert chosen.run(scheduled("abc", [1, 2], block_ids=[0])).tokens == (5,)
    settings = {"vocab_size": 300, "eos_token_id": 2, "mean_output_tokens": 10}
    draws = [expected_token([i], **settings) for i in range(300)]
    assert 15 < draws.count(2) < 60
    assert max(draws) < 300
    ending = drive(ScriptedExecutor(4, 4, **settings))
    assert ending.run(scheduled("a", [7], block_ids=[0])).tokens == (draws[7],)


def test_a_shared_prefix_is_read_through_the_table(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT, block_ids=[0, 1, 2]))
    result = driver.run(scheduled("b", [1, 2], 8, block_ids=[0, 1, 5]))
    assert result.tokens == (expected_token([*PROMPT[:8], 1, 2]),)


def test_a_prefix_of_others_tokens_gives_other_tokens(driver: Any, scheduled: Any) -> None:
    """A wrong hit in the prefix index: every read is sound, so only the tokens tell."""
    driver.run(scheduled("a", [9, *PROMPT[1:]], block_ids=[0, 1, 2]))
    result = driver.run(scheduled("b", [1, 2], 8, block_ids=[0, 1, 5]))
    assert result.tokens != (expected_token([*PROMPT[:8], 1, 2]),)


def test_a_copy_is_made_before_the_step_writes(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT[:6], block_ids=[0, 1]))
    result = driver.run(
        scheduled("a", [77], 6, table_start=1, block_ids=[3]),
        scheduled("b", [88], 6, block_ids=[0, 1]),
        copies=copies((1, 3)),
    )
    assert result.tokens == (
        expected_token([*PROMPT[:6], 77]),
        expected_token([*PROMPT[:6], 88]),
    )


def test_preemption_is_finish_and_start_again_in_one_step(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT[:6], block_ids=[0, 1]))
    result = driver.run(
        scheduled("a", PROMPT, block_ids=[4, 5, 6]), finished=(RequestId("a"), RequestId("never"))
    )
    assert result.tokens == (expected_token(PROMPT),)


# What a faulty scheduler would do.


def test_reading_an_unwritten_slot_is_an_error(driver: Any, scheduled: Any) -> None:
    with pytest.raises(InvalidStepError, match=r"position 3 in slot 3 .* not written"):
        driver.run(scheduled("a", [1], 4, block_ids=[0, 1]))


@pytest.mark.parametrize(
    ("overwritten", "message"),
    [(4, "position 4 in slot 4 .* not hold the KV of its own"), (2, "position 7 .* not written")],
)
def test_a_block_overwritten_by_another_is_an_error(
    overwritten: int, message: str, driver: Any, scheduled: Any
) -> None:
    driver.run(scheduled("a", PROMPT, block_ids=[0, 1, 2]))
    driver.run(finished=("a",))
    driver.run(scheduled("b", PROMPT[:overwritten], block_ids=[1]))
    with pytest.raises(InvalidStepError, match=f"'c' reads {message}"):
        driver.run(scheduled("c", [1], 8, block_ids=[0, 1, 5]), finished=("b",))


def test_writing_to_a_block_that_another_has_is_an_error(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT[:6], block_ids=[0, 1]))
    with pytest.raises(InvalidStepError, match="'b' writes block 1, which 'a' also has"):
        driver.run(scheduled("b", [7], 6, block_ids=[0, 1]))


def test_two_writers_of_a_block_are_an_error(driver: Any, scheduled: Any) -> None:
    with pytest.raises(InvalidStepError, match="'b' writes block 1, and so does 'a'"):
        driver.run(scheduled("a", [7], block_ids=[1]), scheduled("b", [7], block_ids=[1]))


def test_a_missing_copy_is_an_error(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT[:6], block_ids=[0, 1]))
    with pytest.raises(InvalidStepError, match="not written"):
        driver.run(scheduled("a", [77], 6, table_start=1, block_ids=[3]))


def test_a_block_in_the_wrong_place_is_an_error(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT, block_ids=[0, 1, 2]))
    with pytest.raises(InvalidStepError, match=r"position 0 .* not hold the KV of its own"):
        driver.run(scheduled("b", [1], 8, block_ids=[1, 0, 5]))


def test_skipping_or_repeating_a_position_is_an_error(driver: Any, scheduled: Any) -> None:
    driver.run(scheduled("a", PROMPT[:6], block_ids=[0, 1]))
    for position in (5, 7):
        with pytest.raises(InvalidStepError, match="has stored 6 tokens"):
            driver.run(scheduled("a", [1], position))


def test_a_table_that_changed_under_the_sequence_is_an_error(driver: Any, scheduled: Any) -> None:
    driver.run(
        scheduled("a", PROMPT[:6], block_ids=[0, 1]), scheduled("b", [9] * 6, block_ids=[4, 5])
    )
    with pytest.raises(InvalidStepError, match="position 5"):
        driver.run(scheduled("a", [1], 6, block_ids=[4, 5]), finished=("b",))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (2, 1)], "destination of two"),
        ([(0, 1), (1, 2)], "source and"),
        ([(0, 16)], "only 16 blocks"),
    ],
)
def test_copies_that_depend_on_their_order_are_errors(
    pairs: list[tuple[int, int]], message: str, driver: Any
) -> None:
    with pytest.raises(InvalidStepError, match=message):
        driver.run(copies=copies(*pairs))


def test_a_token_beyond_the_vocabulary_is_an_error(driver: Any, scheduled: Any) -> None:
    with pytest.raises(InvalidStepError, match="vocabulary has 1000"):
        driver.run(scheduled("a", [1000], block_ids=[0]))


def test_many_sequences_at_random_stay_right(driver: Any, scheduled: Any) -> None:
    rng = random.Random(1)
    driver = type(driver)(ScriptedExecutor(num_blocks=200, block_size=4))
    free = list(range(200))
    rng.shuffle(free)
    tokens: dict[str, list[int]] = {}
    stored: dict[str, int] = {}
    held: dict[str, list[int]] = {}
    for i in range(300):
        if len(tokens) < 8:
            name = f"r{i}"
            tokens[name] = [rng.randrange(1000) for _ in range(rng.randrange(1, 40))]
            stored[name], held[name] = 0, []
        chosen = rng.sample(sorted(tokens), k=min(len(tokens), 4))
        sequences = []
        for name in chosen:
            count = rng.randint(1, len(tokens[name]) - stored[name])
            end = stored[name] + count
            gained = [free.pop() for _ in range(-(-end // 4) - len(held[name]))]
            part = tokens[name][stored[name] : end]
            sequences.append(
                scheduled(name, part, stored[name], table_start=len(held[name]), block_ids=gained)
            )
            held[name] += gained
            stored[name] = end
        result = driver.run(*sequences)
        finished = []
        for name, token in zip(chosen, result.tokens, strict=True):
            assert token == expected_token(tokens[name][: stored[name]])
            if stored[name] == len(tokens[name]):
                tokens[name].append(token)
            if len(tokens[name]) > 50 or rng.random() < 0.05:
                finished.append(name)
        driver.run(finished=tuple(finished))
        for name in finished:
            free += held.pop(name)
            del tokens[name], stored[name]
