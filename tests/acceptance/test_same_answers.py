"""A request's answer depends on the request alone: whatever else is computed with it, however its
prompt was cut, wherever its KV came from, its tokens and their log-probabilities are the same."""

from typing import Any

import pytest

from looseleaf import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.model

SYSTEM = (
    "<|im_start|>system\nYou are the assistant of a small library. Answer in one plain sentence."
    "<|im_end|>\n<|im_start|>user\n"
)
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = (
    f"{SYSTEM}What is gravity?{ASSISTANT}",
    "The capital of France is",
    f"{SYSTEM}What is a library?{ASSISTANT}",
    "def fibonacci(n):\n",
    f"{SYSTEM}What is gravity?{ASSISTANT}",
)
NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)

Answer = list[tuple[int, float]]
"""Tokens, each with its log-probability."""


def answers(llm: LLM, prompts: tuple[str, ...] = PROMPTS, params: Any = GREEDY) -> list[Answer]:
    """Of every sample of every prompt."""
    return read(llm.generate(list(prompts), params))


def read(outputs: list[RequestOutput]) -> list[Answer]:
    return [
        [
            (token_id, found.logprob)
            for token_id, found in zip(sample.token_ids, sample.logprobs, strict=True)
        ]
        for output in outputs
        for sample in output.outputs
    ]


@pytest.fixture(scope="module")
def alone(loaded: Any) -> list[Answer]:
    """Each prompt by itself in one chunk, with nothing stored."""
    with loaded.llm(num_blocks=64, enable_prefix_caching=False) as llm:
        different = {prompt: answers(llm, (prompt,))[0] for prompt in set(PROMPTS)}
        assert llm.engine.scheduler.counters.preemptions == 0
    assert all(len(answer) == NUM_TOKENS for answer in different.values())
    assert len({tuple(answer) for answer in different.values()}) == 4
    return [different[prompt] for prompt in PROMPTS]


BATCHED: dict[str, int] = {}
CHUNKED = {"max_num_batched_tokens": 7}
PREEMPTED = {"num_blocks": 8, "block_size": 8, "admission_headroom": 0}


@pytest.mark.parametrize(
    ("settings", "caching"),
    [
        pytest.param(BATCHED, True, id="batched"),
        pytest.param(BATCHED, False, id="batched, no caching"),
        pytest.param(CHUNKED, True, id="chunked"),
        pytest.param(CHUNKED, False, id="chunked, no caching"),
        pytest.param(PREEMPTED, True, id="preempted"),
        pytest.param(PREEMPTED, False, id="preempted, no caching"),
        pytest.param(CHUNKED | PREEMPTED, True, id="chunked and preempted"),
    ],
)
def test_in_company(make_llm: Any, alone: list[Answer], settings: Any, caching: bool) -> None:
    llm = make_llm(**({"num_blocks": 64} | settings), enable_prefix_caching=caching)
    most = 0

    def observe(step: Any, _: Any) -> None:
        nonlocal most
        most = max(most, len(step.sequences))
        assert step.num_tokens <= settings.get("max_num_batched_tokens", 512)

    llm.engine.observers.append(observe)
    assert answers(llm) == alone
    counters = llm.engine.scheduler.counters
    assert (counters.preemptions > 0) == (settings.get("num_blocks") == 8)
    assert most > 1
    assert (counters.prefix_hits > 0) == caching


def test_from_what_is_stored(make_llm: Any, alone: list[Answer]) -> None:
    """The second time all of each prompt but its last token is found."""
    llm = make_llm(num_blocks=128)
    answers(llm)
    outputs = llm.generate(list(PROMPTS), GREEDY)
    assert [o.num_cached_tokens for o in outputs] == [len(o.prompt_token_ids) - 1 for o in outputs]
    assert read(outputs) == alone


def test_among_four_samples(make_llm: Any, alone: list[Answer]) -> None:
    """Forked after one prefill, and copied on write as the prompt ends inside a block."""
    params = SamplingParams(n=4, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    for settings in (
        {"num_blocks": 64},
        {"num_blocks": 10, "block_size": 8, "admission_headroom": 0},
    ):
        llm = make_llm(**settings)
        found = answers(llm, (PROMPTS[0], PROMPTS[1]), [params, GREEDY])
        assert found == [alone[0]] * 4 + [alone[1]]
        assert llm.engine.scheduler.allocator.num_copies > 0
        preempted = llm.engine.scheduler.counters.preemptions > 0
        assert preempted == (settings["num_blocks"] == 10)


def test_beside_a_request_that_joins_and_one_that_leaves(
    make_llm: Any, alone: list[Answer]
) -> None:
    llm = make_llm(num_blocks=64)
    ids = [llm.get_tokenizer().encode(p, add_special=True, parse_special=True) for p in PROMPTS[:3]]
    first, leaving = llm.stream(ids[0], GREEDY), llm.stream(ids[2], GREEDY)
    tokens: list[int] = []
    for _ in range(3):
        tokens += next(first)[1].token_ids
        next(leaving)
    leaving.close()
    joining = [delta.token_ids for _, delta in llm.stream(ids[1], GREEDY)]
    for _, delta in first:
        tokens += delta.token_ids
    assert tokens == [token_id for token_id, _ in alone[0]]
    assert [i for ids_ in joining for i in ids_] == [token_id for token_id, _ in alone[1]]
