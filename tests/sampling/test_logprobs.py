import json
import math

import numpy as np

from looseleaf.sampling.logprobs import FLOOR, prompt_logprobs, token_logprobs


def test_is_log_softmax_with_the_top_in_falling_order() -> None:
    logits = np.array([0.0, 2.0, 1.0, -1.0], np.float32)
    total = math.log(sum(math.exp(x) for x in (0.0, 2.0, 1.0, -1.0)))
    result = token_logprobs(logits, 0, 2)
    assert math.isclose(result.logprob, -total, rel_tol=1e-12)
    assert [i for i, _ in result.top] == [1, 2]
    assert math.isclose(result.top[0][1], 2.0 - total, rel_tol=1e-12)
    assert token_logprobs(logits, 0, 0).top == ()


def test_ties_are_listed_by_lowest_id() -> None:
    logits = np.array([1.0, 3.0, 1.0, 1.0, 3.0], np.float32)
    assert [i for i, _ in token_logprobs(logits, 0, 4).top] == [1, 4, 0, 2]


def test_c072_is_finite_whatever_the_logits() -> None:
    logits = np.array([0.0, -np.inf, 1e30, -3e38, np.nan], np.float32)
    result = token_logprobs(logits, 1, 5)
    assert result.logprob == FLOOR
    values = [value for _, value in result.top]
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values == sorted(values, reverse=True)
    assert prompt_logprobs(logits[None], [4]) == (FLOOR,)


def test_c078_ids_beyond_the_tokenizer_are_never_listed() -> None:
    logits = np.array([0.0, 0.0, 9.0], np.float32)
    result = token_logprobs(logits, 1, 3, num_valid_tokens=2)
    assert [i for i, _ in result.top] == [0, 1]
    assert math.isclose(result.logprob, math.log(0.5))
    assert token_logprobs(logits, 2, 0, num_valid_tokens=2).logprob == FLOOR


def test_large_logits_lose_nothing() -> None:
    logits = np.full(49_152, 10_000.0, np.float32)
    assert math.isclose(token_logprobs(logits, 5, 0).logprob, -math.log(49_152), rel_tol=1e-12)


def test_prompt_logprobs_take_a_row_for_each_token() -> None:
    logits = np.array([[0.0, 1.0], [3.0, 3.0]], np.float32)
    first, second = prompt_logprobs(logits, (1, 0))
    assert math.isclose(first, 1 - math.log(1 + math.e))
    assert math.isclose(second, -math.log(2))
