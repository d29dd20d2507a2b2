"""Words and ids of a request, in the model's vocabulary."""

from pathlib import Path

import pytest

from looseleaf import LLM, LooseleafError, SamplingParams
from looseleaf.engine.params import resolve


@pytest.fixture
def llm(tiny_model: Path) -> LLM:
    with LLM(str(tiny_model)) as made:
        yield made


def test_c067_both_spellings_of_a_word(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    grammars = llm.stack.grammars
    params = resolve(SamplingParams(bad_words=("hell", " hi")), tokenizer, grammars)
    spelt = {tokenizer.decode(list(word)) for word in params.bad_words_token_ids}
    assert spelt == {"hell", " hell", "hi", " hi"}
    assert resolve(params, tokenizer, grammars) == params


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"logit_bias": {99_999_999: 5.0}}, "logit_bias has token 99999999, .* 0 to 258"),
        ({"logit_bias": {-1: 5.0}}, "logit_bias has token -1"),
        ({"allowed_token_ids": frozenset({3, 259})}, "allowed_token_ids has token 259"),
        ({"bad_words_token_ids": ((1, 300),)}, "bad_words_token_ids has token 300"),
    ],
)
def test_c060_ids_that_no_model_has(llm: LLM, asked: dict, said: str) -> None:
    with pytest.raises(LooseleafError, match=said):
        llm.generate(["hi"], SamplingParams(**asked), use_tqdm=False)
    (answer,) = llm.generate(["hi"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert answer.outputs[0].token_ids
