from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import F16_BYTES_PER_TOKEN

from looseleaf import LLM, CapacityError, ConfigError, LooseleafError, SamplingParams
from looseleaf.compiled import compiled
from looseleaf.core import invariants
from looseleaf.core.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["hello", "a longer prompt with more tokens in it", "hello there", "x", "hello"]
# 16 blocks of 4 tokens: too few for all prompts at once.
SMALL = {"admission_headroom": 0, "block_size": 4, "kv_cache_memory": 16 * 4 * F16_BYTES_PER_TOKEN}

native = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")


@pytest.fixture
def make_llm(tiny_model: Path) -> Any:
    llms = []

    def make(**settings: Any) -> LLM:
        llm = LLM(str(tiny_model), **({"kv_cache_memory": 2**20} | settings))
        llms.append(llm)
        return llm

    yield make
    for llm in llms:
        scheduler: Scheduler = llm.engine.scheduler
        invariants.check(scheduler)
        assert not scheduler.has_work
        llm.close()


def tokens(outputs: list) -> list[tuple[int, ...]]:
    return [sample.token_ids for output in outputs for sample in output.outputs]


def test_answers_come_in_the_order_of_the_prompts_on_every_call(make_llm) -> None:
    """C-050: a second call on the same engine gives its own results."""
    llm = make_llm()
    first = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in first] == PROMPTS
    assert all(len(ids) == 12 for ids in tokens(first))
    second = llm.generate(list(reversed(PROMPTS)), GREEDY)
    assert [output.prompt for output in second] == PROMPTS[::-1]
    assert tokens(second) == tokens(first)[::-1]
    assert len({output.request_id for output in first + second}) == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"max_num_seqs": 1},
        {"enable_prefix_caching": False},
        {"block_size": 1},
        {"block_size": 3},
        SMALL,
        {"kv_allocator": "contiguous-max", "max_model_len": 64},
        {"kv_allocator": "contiguous-pow2"},
        {"kv_allocator": "contiguous-oracle"},
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 3},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_greedy_output_is_the_same_whatever_the_settings(make_llm, settings) -> None:
    alone = [tokens(make_llm().generate([prompt], GREEDY))[0] for prompt in PROMPTS]
    llm = make_llm(**settings)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == alone
    if settings.get("kv_cache_memory"):
        assert llm.engine.scheduler.counters.preemptions > 0


def test_seeded_output_is_the_same_alone_batched_preempted_and_among_siblings(make_llm) -> None:
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True, top_p=0.9)
        for i in range(len(PROMPTS))
    ]
    alone = [
        tokens(make_llm().generate([prompt], p))[0]
        for prompt, p in zip(PROMPTS, params, strict=True)
    ]
    assert len(set(alone)) == len(PROMPTS)
    for settings in ({}, SMALL):
        llm = make_llm(**settings)
        assert tokens(llm.generate(PROMPTS, params)) == alone
        assert (llm.engine.scheduler.counters.preemptions > 0) is (settings is SMALL)
    siblings = SamplingParams(
        n=4, temperature=1.0, seed=0, max_tokens=12, ignore_eos=True, top_p=0.9
    )
    (output,) = make_llm().generate([PROMPTS[0]], siblings)
    assert output.outputs[0].token_ids == alone[0]
    assert len({sample.token_ids for sample in output.outputs}) == 4
    assert [sample.index for sample in output.outputs] == [0, 1, 2, 3]


def test_c052_a_seed_decides_and_without_one_answers_differ(make_llm) -> None:
    llm = make_llm()
    seeded = SamplingParams(temperature=2.0, seed=42, max_tokens=16, ignore_eos=True)
    free = SamplingParams(temperature=2.0, max_tokens=16, ignore_eos=True)
    runs = [tokens(llm.generate(["hello", "hello"], [seeded, free])) for _ in range(4)]
    assert len({run[0] for run in runs}) == 1
    assert len({run[1] for run in runs}) == 4


def test_greedy_samples_of_one_prompt_are_equal(make_llm) -> None:
    llm = make_llm()
    (alone,) = tokens(llm.generate(["hello"], GREEDY))
    params = SamplingParams(n=4, temperature=0, max_tokens=12, ignore_eos=True)
    assert tokens(llm.generate(["hello"], params)) == [alone] * 4


def test_repeated_prompts_are_found_stored(make_llm) -> None:
    llm = make_llm()
    prompt = list(range(40))
    outputs = [llm.generate([prompt], GREEDY)[0] for _ in range(2)]
    assert [output.num_cached_tokens for output in outputs] == [0, 39]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


def test_prompt_logprobs_have_an_entry_for_each_token(make_llm) -> None:
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=True)
    (whole,) = make_llm().generate(["some prompt text"], scored)
    (chunked,) = make_llm(max_num_batched_tokens=3).generate(["some prompt text"], scored)
    assert len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
    assert whole.prompt_logprobs[0] is None
    assert whole.prompt_logprobs == chunked.prompt_logprobs
    assert all(value < 0 for value in whole.prompt_logprobs[1:])


def test_logprobs_of_sampled_tokens(make_llm) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, ignore_eos=True)
    (output,) = make_llm().generate(["hello"], params)
    (sample,) = output.outputs
    assert len(sample.logprobs) == 3
    for token_id, logprobs in zip(sample.token_ids, sample.logprobs, strict=True):
        assert logprobs.top[0] == (token_id, logprobs.logprob)
        assert len(logprobs.top) == 2


def test_a_stop_string_ends_the_answer_before_it(make_llm) -> None:
    llm = make_llm()
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True)
    (free,) = llm.generate(["hello"], params)
    text = free.outputs[0].text
    stop = text[20:22]
    stopped = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True, stop=(stop,))
    (output,) = llm.generate(["hello"], stopped)
    (sample,) = output.outputs
    assert sample.finish_reason == "stop"
    assert sample.stop_reason == stop
    assert sample.text == text[: text.index(stop)]
    assert len(sample.token_ids) < 60
    assert sample.token_ids == free.outputs[0].token_ids[: len(sample.token_ids)]


def test_stop_tokens_end_the_answer_and_are_not_shown(make_llm) -> None:
    llm = make_llm()
    (free,) = llm.generate(["hello"], GREEDY)
    ids = free.outputs[0].token_ids
    params = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=frozenset({ids[3]})
    )
    (output,) = llm.generate(["hello"], params)
    (sample,) = output.outputs
    end = ids.index(ids[3]) + 1
    assert sample.token_ids == ids[:end]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", ids[3])
    assert sample.text == llm.get_tokenizer().decode(ids[: end - 1])


def test_chat_goes_through_the_models_template(make_llm) -> None:
    llm = make_llm()
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|start|>user\nhello<|end|>\n<|start|>assistant\n"
    assert output.prompt_token_ids[0] == 256
    two = llm.chat([messages, messages], GREEDY)
    assert [o.outputs[0].token_ids for o in two] == [output.outputs[0].token_ids] * 2


def test_streams_can_be_read_in_turn_and_left(make_llm) -> None:
    llm = make_llm()
    expected = [output.outputs[0] for output in llm.generate(["hello", "x"], GREEDY)]
    ids = [
        llm.get_tokenizer().encode(p, add_special=True, parse_special=True) for p in ("hello", "x")
    ]
    one, two = llm.stream(ids[0], GREEDY), llm.stream(ids[1], GREEDY)
    texts, received = ["", ""], [[], []]
    for pair in zip(one, two, strict=True):
        for i, (_, delta) in enumerate(pair):
            texts[i] += delta.text
            received[i].extend(delta.token_ids)
    assert texts == [sample.text for sample in expected]
    assert [tuple(r) for r in received] == [sample.token_ids for sample in expected]
    left = llm.stream(ids[0], GREEDY)
    next(left)
    left.close()
    assert not llm.engine.has_work


def test_what_cannot_be_served_is_refused_before_anything_starts(make_llm) -> None:
    llm = make_llm(max_model_len=32)
    with pytest.raises(CapacityError, match=r"40 tokens.*at most 32"):
        llm.generate([[1, 2, 3], [1] * 40], GREEDY)
    with pytest.raises(LooseleafError, match=r"token 999 at position 1.*0 to 258"):
        llm.generate([[1, 999]], GREEDY)
    with pytest.raises(LooseleafError, match="no tokens"):
        llm.generate([[]], GREEDY)
    with pytest.raises(ValueError, match="2 sampling params for 1 prompts"):
        llm.generate(["a"], [GREEDY, GREEDY])
    assert llm.engine.scheduler.counters.steps == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"executor": "abacus"}, "'abacus'.*reference"),
        ({"kv_allocator": "heap"}, "'heap'.*paged"),
        ({"scheduling_policy": "lottery"}, "'lottery'.*fcfs"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_model_len": 4096}, "max_model_len is 4096.*512"),
        ({"kv_cache_memory": 100}, "100 B.*one block"),
        ({"kv_cache_memory": 10**16}, "kv_cache_memory is 9313225.7 GiB, but only .* available"),
        ({"kv_cache_memory": "lots"}, "'lots' is not understood"),
    ],
)
def test_settings_that_cannot_work_say_why(tiny_model: Path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(tiny_model), **settings)


@pytest.mark.parametrize(
    ("dtype", "memory", "told"),
    [
        ("f32", 100_000, r"128\.0 KiB.*97\.7 KiB"),
        pytest.param("f16", 50_000, r"64\.0 KiB.*48\.8 KiB", marks=native),
    ],
)
def test_c142_a_context_that_does_not_fit_names_the_largest_that_does(
    tiny_model: Path, dtype: str, memory: int, told: str
) -> None:
    # One token takes 2 * 2 layers * 2 KV heads * 8 = 64 numbers: 256 bytes in f32, 128 in f16.
    # A block takes 4,096 or 2,048 bytes, and the memory holds 24 of them.
    def make(**settings: Any) -> LLM:
        return LLM(str(tiny_model), kv_cache_memory=memory, kv_cache_dtype=dtype, **settings)

    with pytest.raises(ConfigError, match=told + ".*max_model_len to 384 or less"):
        make(max_model_len=512)
    with make(max_model_len=384) as llm:
        assert llm.stack.memory.num_blocks == 24
    with make() as llm:
        assert llm.stack.memory.max_model_len == 384


@pytest.mark.parametrize(
    ("settings", "num_tokens"),
    [
        ({"executor": "reference"}, 256),
        pytest.param({"executor": "native"}, 400, marks=native),  # 25 blocks of 2,560 bytes
        pytest.param({"executor": "native", "kv_cache_dtype": "f16"}, 512, marks=native),
        pytest.param({"executor": "native", "kv_cache_dtype": "f32"}, 256, marks=native),
    ],
)
def test_memory_can_be_given_as_people_write_it(
    tiny_model: Path, settings: dict[str, str], num_tokens: int
) -> None:
    with LLM(str(tiny_model), kv_cache_memory="64KiB", **settings) as llm:
        assert llm.stack.memory.num_tokens == num_tokens


def test_an_interrupted_call_leaves_an_engine_that_works(make_llm) -> None:
    llm = make_llm()
    expected = tokens(llm.generate(PROMPTS, GREEDY))
    execute, calls = llm.engine.executor.execute, []

    def interrupted(step):
        calls.append(step)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return execute(step)

    llm.engine.executor.execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    assert not llm.engine.has_work
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected


def test_prompt_logprobs_come_once_although_samples_compute_the_prompt_again(make_llm) -> None:
    params = SamplingParams(n=3, temperature=0, max_tokens=2, prompt_logprobs=True)
    (output,) = make_llm(max_num_seqs=1, enable_prefix_caching=False).generate(["hello"], params)
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_c156_logits_that_are_no_numbers_end_their_own_request_alone(make_llm) -> None:
    llm = make_llm()
    expected = tokens(llm.generate(PROMPTS, GREEDY))
    executor = llm.engine.executor
    logits = executor.logits

    def damaged(step):
        rows, batch = logits(step)
        for part in batch.ranges:
            if part.sequence.request_id == "llm-6/0":
                rows[part.logits_start : part.logits_stop] = float("nan")
        return rows, batch

    executor.logits = damaged
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.outputs[0].finish_reason for o in outputs].count("error") == 1
    assert outputs[1].outputs[0].finish_reason == "error"
    assert outputs[1].outputs[0].token_ids == ()
    del executor.logits
    assert [t for i, t in enumerate(tokens(outputs)) if i != 1] == [
        t for i, t in enumerate(expected) if i != 1
    ]
    # Nothing that it computed can be found: the same prompt again gives the right answer.
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected


def test_closing_twice_does_no_harm(tiny_model: Path) -> None:
    with LLM(str(tiny_model), kv_cache_memory=2**20) as llm:
        llm.close()
