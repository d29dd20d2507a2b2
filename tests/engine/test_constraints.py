"""What a request asks of its tokens, on an engine: kept whatever happens around it."""

from collections.abc import Callable
from typing import Any

import pytest

from looseleaf import LLM, RequestOutput, SamplingParams

MakeLLM = Callable[..., LLM]

PENALISED = SamplingParams(
    temperature=0,
    max_tokens=30,
    ignore_eos=True,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={40: 1.5, 41: -1.5},
    bad_words_token_ids=((50,), (60, 61)),
)
PROMPTS = ["abc abc abc", "hello there", "zzzz", "abc abd"]


def tokens(outputs: list[RequestOutput]) -> list[list[tuple[int, ...]]]:
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


def run(llm: LLM, params: Any, prompts: list[str] = PROMPTS) -> list[list[tuple[int, ...]]]:
    return tokens(llm.generate(prompts, params, use_tqdm=False))


@pytest.mark.parametrize(
    "params",
    [
        PENALISED,
        SamplingParams(
            seed=3,
            n=3,
            max_tokens=30,
            ignore_eos=True,
            repetition_penalty=1.5,
            presence_penalty=1.0,
            bad_words=("ab",),
        ),
    ],
    ids=["greedy", "seeded, n=3"],
)
def test_penalties_do_not_depend_on_company_chunks_cache_or_preemption(
    make_llm: MakeLLM, params: SamplingParams
) -> None:
    plain = make_llm(enable_prefix_caching=False)
    alone = [run(plain, params, [prompt])[0] for prompt in PROMPTS]
    assert alone != [run(plain, SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))]
    assert run(plain, params) == alone
    assert run(make_llm(max_num_batched_tokens=5, max_num_seqs=5), params) == alone
    cached = make_llm()
    assert run(cached, params) == alone
    assert run(cached, params) == alone  # all prompts found stored
    tight = make_llm(block_size=8, kv_cache_memory=9 * 8 * 300, admission_headroom=0)
    assert run(tight, params) == alone
    assert tight.engine.scheduler.counters.preemptions > 0


def test_only_allowed_tokens_come(make_llm: MakeLLM) -> None:
    allowed = frozenset({5, 70, 200})
    params = SamplingParams(seed=1, max_tokens=40, allowed_token_ids=allowed, temperature=5)
    (answer,) = run(make_llm(), params, ["hello"])
    assert set(answer[0]) == allowed


def test_a_bias_decides(make_llm: MakeLLM) -> None:
    llm = make_llm()
    forced = SamplingParams(temperature=0, max_tokens=5, logit_bias={77: 100.0})
    assert run(llm, forced, ["hello"]) == [[(77,) * 5]]
    (first,) = run(llm, SamplingParams(temperature=0, max_tokens=1), ["hello"])
    banned = SamplingParams(temperature=0, max_tokens=1, logit_bias={first[0][0]: -100.0})
    assert run(llm, banned, ["hello"]) != [first]


def test_bad_words_never_come(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    (free,) = run(llm, params, ["hello"])
    text = llm.get_tokenizer().decode(list(free[0]))
    word = text[3:6]
    assert word in text
    held = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, bad_words=(word,))
    (answer,) = llm.generate(["hello"], held, use_tqdm=False)
    ids = [llm.get_tokenizer().encode(w, add_special=False, parse_special=False) for w in [word]]
    for spelt in ids:
        generated = list(answer.outputs[0].token_ids)
        windows = [generated[i : i + len(spelt)] for i in range(len(generated))]
        assert spelt not in windows


def test_c063_nothing_ends_before_min_tokens(make_llm: MakeLLM) -> None:
    llm = make_llm()
    (free,) = run(llm, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), ["hello"])
    stops = frozenset(free[0][:2])
    ended = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=stops)
    assert len(run(llm, ended, ["hello"])[0][0]) == 1
    held = SamplingParams(temperature=0, max_tokens=8, min_tokens=5, stop_token_ids=stops)
    (answer,) = run(llm, held, ["hello"])
    assert len(answer[0]) >= 5
    assert not stops & set(answer[0][:5])


def test_c062_stop_strings_wait_for_min_tokens(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    (free,) = llm.generate(["hello"], SamplingParams(**params), use_tqdm=False)
    stop = free.outputs[0].text[:1]
    (early,) = llm.generate(["hello"], SamplingParams(**params, stop=(stop,)), use_tqdm=False)
    assert early.outputs[0].finish_reason == "stop"
    assert early.outputs[0].text == ""
    held = SamplingParams(**params, stop=(stop,), min_tokens=12)
    (late,) = llm.generate(["hello"], held, use_tqdm=False)
    assert len(late.outputs[0].token_ids) == 12
    assert late.outputs[0].text.startswith(stop)


@pytest.mark.parametrize("how", [{"temperature": 0.01}, {"top_p": 0.5}, {"top_k": 1}])
def test_c071_log_probabilities_do_not_depend_on_filters(make_llm: MakeLLM, how: Any) -> None:
    llm = make_llm()
    found = []
    for asked in ({}, how):
        params = SamplingParams(seed=1, max_tokens=1, logprobs=3, **asked)
        (output,) = llm.generate(["hello"], params, use_tqdm=False)
        found.append(output.outputs[0].logprobs[0].top)
    assert found[0] == found[1]
    assert len(found[0]) == 3
    assert all(-100 < logprob < 0 for _, logprob in found[0])


def test_log_probabilities_are_of_the_logits_as_they_came(make_llm: MakeLLM) -> None:
    llm = make_llm()
    plain = SamplingParams(temperature=0, max_tokens=1, logprobs=3)
    (free,) = llm.generate(["hello"], plain, use_tqdm=False)
    second = free.outputs[0].logprobs[0].top[1][0]
    biased = SamplingParams(temperature=0, max_tokens=1, logprobs=3, logit_bias={second: 100.0})
    (answer,) = llm.generate(["hello"], biased, use_tqdm=False)
    assert answer.outputs[0].token_ids == (second,)
    found, known = answer.outputs[0].logprobs[0], free.outputs[0].logprobs[0]
    assert found.top == known.top
    assert found.logprob == known.top[1][1]
