"""Guesses from what came before, and that they change nothing but the number of steps."""

from pathlib import Path

import pytest
from bookkeeping import make_request

from looseleaf import LLM, SamplingParams
from looseleaf.core.errors import ConfigError
from looseleaf.engine.ngram import NgramDrafter
from looseleaf.engine.settings import EngineSettings


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    drafter = NgramDrafter(3)
    request = make_request("r", [1, 2, 7, 8, 9, 10, 1, 2, 5, 6, 1, 2])
    assert list(drafter(request, 10)) == [5, 6, 1]
    assert list(drafter(make_request("r", [7, 1, 2, 9, 3, 1, 2, 8, 7, 1, 2]), 10)) == [9, 3, 1]


@pytest.mark.parametrize("prompt", [[1], [1, 2], [1, 2, 3, 4], [5, 5]])
def test_nothing_is_guessed_from_nothing(prompt: list[int]) -> None:
    assert list(NgramDrafter(3)(make_request("r", prompt), 10)) == []


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    request = make_request("r", [1, 2, 3, 4, 5, 1, 2])
    assert list(NgramDrafter(8)(request, 2)) == [3, 4]


def test_wrong_guesses_make_it_careful_and_right_ones_bold() -> None:
    drafter = NgramDrafter(8)
    request = make_request("r", [*range(10), 3, 10, 11, 12, 13, 14, 15, 16, 0, 1])
    assert list(drafter(request, 50)) == [2, 3, 4, 5, 6, 7, 8, 9]
    request.token_ids += [2, 3, 10]  # two were right
    assert list(drafter(request, 50)) == [11, 12]
    request.token_ids += [11, 12, 13]  # both were
    assert list(drafter(request, 50)) == [14, 15, 16, 0]
    request.token_ids += [3, 10]  # none was
    assert list(drafter(request, 50)) == [11]


@pytest.mark.parametrize("most", [-1, 33, 16])
def test_a_number_that_cannot_be_is_refused(most: int) -> None:
    with pytest.raises(ConfigError, match=f"speculative_ngram is {most}, but it must be between 0"):
        EngineSettings(speculative_ngram=most, max_num_batched_tokens=16)


PARAMS = [
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    SamplingParams(seed=3, max_tokens=40, logprobs=2),
    SamplingParams(seed=4, max_tokens=40, n=2, temperature=0.3),
    SamplingParams(temperature=0, max_tokens=30, repetition_penalty=1.5),
    SamplingParams(temperature=0, max_tokens=30, min_tokens=10, stop=("a",)),
    SamplingParams(temperature=0, max_tokens=30, prompt_logprobs=True),
]


@pytest.mark.parametrize("num_blocks", [None, 40])
def test_answers_are_the_same_in_fewer_steps(tiny_model: Path, num_blocks: int | None) -> None:
    prompts = [[65 + (i * k) % 7 for i in range(30)] for k in range(1, len(PARAMS) + 1)]
    found, steps = [], []
    for most in (0, 4):
        with LLM(str(tiny_model), speculative_ngram=most, max_model_len=128) as llm:
            if num_blocks is not None:
                memory = num_blocks * llm.stack.memory.block_bytes
                llm.close()
                llm = LLM(
                    str(tiny_model),
                    speculative_ngram=most,
                    max_model_len=128,
                    kv_cache_memory=memory,
                )
            outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
            counters = llm.engine.scheduler.counters
            found.append([(out.outputs, out.prompt_logprobs) for out in outputs])
            steps.append(counters.steps)
            assert bool(counters.accepted_tokens) == bool(most)
            assert counters.accepted_tokens <= counters.draft_tokens
    assert found[0] == found[1]
    assert steps[1] < steps[0]
