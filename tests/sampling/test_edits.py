"""Penalties, biases and bans against a slow reading of their rules, token by token."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.core.errors import LooseleafError
from looseleaf.sampling.edits import edit_row
from looseleaf.sampling.params import SamplingParams

VOCAB = 12


def slow(
    row: list[float],
    params: SamplingParams,
    history: list[int],
    num_prompt: int,
    barred: frozenset[int],
) -> list[float]:
    result = []
    for token, logit in enumerate(row):
        value = float(logit)
        if token in history and params.repetition_penalty != 1:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        count = history[num_prompt:].count(token)
        if count:
            value -= params.frequency_penalty * count + params.presence_penalty
        value += dict(params.biases).get(token, 0)
        completes = any(
            word[-1] == token and (len(word) == 1 or tuple(history[-len(word) + 1 :]) == word[:-1])
            for word in params.bad_words_token_ids
        )
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        if completes or token in barred or not allowed:
            value = -math.inf
        result.append(float(np.float32(value)))
    return result


ids = st.integers(0, VOCAB - 1)
asked = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    logit_bias=st.dictionaries(ids, st.sampled_from([-100.0, -0.5, 3.0, 100.0]), max_size=3),
    allowed_token_ids=st.one_of(st.none(), st.frozensets(ids, min_size=1)),
    bad_words_token_ids=st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3).map(
        tuple
    ),
)


@given(
    row=st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB),
    params=asked,
    history=st.lists(ids, max_size=15),
    num_prompt=st.integers(0, 15),
    barred=st.frozensets(ids, max_size=2),
)
def test_as_the_rules_say(
    row: list[float],
    params: SamplingParams,
    history: list[int],
    num_prompt: int,
    barred: frozenset[int],
) -> None:
    num_prompt = min(num_prompt, len(history))
    logits = np.array(row, np.float32)
    kept = logits.copy()
    edit = edit_row(logits, params, np.array(history, np.int32), num_prompt, barred)
    np.testing.assert_array_equal(logits, kept)  # the row itself stays as it is
    expected = np.array(slow(row, params, history, num_prompt, barred), np.float32)
    np.testing.assert_array_equal(edit.apply(logits), expected)
    assert (np.diff(edit.token_ids) > 0).all()


def edited(row: list[float], history: list[int], num_prompt: int, **asked: Any) -> list[float]:
    params = SamplingParams(**asked)
    logits = np.array(row, np.float32)
    edit = edit_row(logits, params, np.array(history, np.int32), num_prompt)
    return edit.apply(logits).tolist()


def test_c070_repetition_counts_the_prompt_and_presence_does_not() -> None:
    row, paris = [2.0, -2.0, 1.0], [0, 1, 0, 1]
    assert edited(row, paris, 4, repetition_penalty=5) == pytest.approx([0.4, -10.0, 1.0])
    assert edited(row, paris, 4, presence_penalty=2) == row
    assert edited(row, paris, 4, frequency_penalty=2) == row
    assert edited(row, [*paris, 0, 0], 4, presence_penalty=2) == [0.0, -2.0, 1.0]
    assert edited(row, [*paris, 0, 0], 4, frequency_penalty=1.5) == [-1.0, -2.0, 1.0]


def test_c067_a_word_of_several_tokens_bans_its_last_after_the_others() -> None:
    word = ((3, 4, 5),)
    row = [0.0] * 6
    assert edited(row, [3, 4], 2, bad_words_token_ids=word)[5] == -math.inf
    assert edited(row, [4, 4], 2, bad_words_token_ids=word) == row
    assert edited(row, [4], 1, bad_words_token_ids=word) == row
    assert edited(row, [], 0, bad_words_token_ids=((2,), (3, 4)))[2:4] == [-math.inf, 0.0]


def test_ids_beyond_the_row_do_not_matter() -> None:
    params = {"logit_bias": {1: 5.0, 9: 5.0}, "bad_words_token_ids": ((8,),)}
    assert edited([0.0, 0.0], [7, 1], 1, repetition_penalty=2, **params) == [0.0, 5.0]
    assert edited([1.0, 0.0], [7], 0, presence_penalty=1) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5, but it must be between -2 and 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, but it must be a finite number"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"logit_bias": {5: 101}}, "logit_bias is .*between -100 and 100"),
        ({"logit_bias": {5: math.nan}}, "logit_bias is"),
        ({"allowed_token_ids": frozenset()}, "allowed_token_ids .* at least one id"),
        ({"bad_words": ("",)}, "bad_words is .*not empty"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 17}, r"min_tokens is 17, but it must be between 0 and max_tokens \(16\)"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(LooseleafError, match=said):
        SamplingParams(**asked)


def test_what_is_asked_for_nothing_edits_nothing() -> None:
    assert not SamplingParams().edits_logits
    assert not SamplingParams(min_tokens=3).edits_logits
    assert SamplingParams(logit_bias={3: 1.0}).edits_logits
    assert not SamplingParams(logit_bias={3: 1.0}).needs_history
    assert not SamplingParams(bad_words_token_ids=((1,),)).needs_history
    assert SamplingParams(bad_words_token_ids=((1, 2),)).needs_history
    assert SamplingParams(logit_bias={3: 1.0}) == SamplingParams(logit_bias=((3, 1.0),))
