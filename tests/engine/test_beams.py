"""Beam search against a slow one that asks for every next token by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf import (
    LLM,
    BeamSearchParams,
    CapacityError,
    LooseleafError,
    SamplingParams,
    StructuredOutputs,
)
from looseleaf.compiled import compiled
from looseleaf.core.invariants import check
from looseleaf.text.detokenizer import IncrementalDetokenizer

MakeLLM = Callable[..., LLM]
Found = list[tuple[tuple[int, ...], float]]

EXECUTORS = ["reference"] + ([] if compiled() is None else ["native"])
PROMPTS = ["abc abc abc", "hello there", "zz", "abc abd, and a longer one than the others"]


@pytest.fixture(params=EXECUTORS)
def make_llm(tiny_model: Path, request: pytest.FixtureRequest) -> Any:
    made: list[LLM] = []

    def make(**settings: Any) -> LLM:
        llm = LLM(str(tiny_model), executor=request.param, **settings)
        step = llm.engine.step

        def checked() -> Any:
            updates = step()
            check(llm.engine.scheduler)
            return updates

        llm.engine.step = checked  # type: ignore[method-assign]
        made.append(llm)
        return llm

    yield make
    for llm in made:
        check(llm.engine.scheduler)
        assert llm.engine.scheduler.allocator.num_available == llm.stack.memory.num_blocks
        llm.close()


def slow(llm: LLM, prompt: str, params: BeamSearchParams) -> Found:
    """The same search, one request for each next token."""
    width, tokenizer = params.beam_width, llm.get_tokenizer()
    ids = tokenizer.encode(prompt, add_special=True, parse_special=True)
    end = params.stop_token_ids | (frozenset() if params.ignore_eos else tokenizer.eos_token_ids)
    ask = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * width, ignore_eos=True)

    def score(tokens: tuple[int, ...], logprob: float) -> float:
        return logprob / len(tokens) ** params.length_penalty

    live: Found = [((), 0.0)]
    ended: Found = []
    for length in range(1, params.max_tokens + 1):
        candidates: Found = []
        for tokens, logprob in live:
            (output,) = llm.generate([[*ids, *tokens]], ask, use_tqdm=False)
            top = output.outputs[0].logprobs[0].top
            candidates += [((*tokens, i), logprob + value) for i, value in top]
        candidates.sort(key=lambda found: -found[1])
        live = []
        for tokens, logprob in candidates[: 2 * width]:
            if tokens[-1] in end or stopped(llm, tokens, params.stop):
                ended.append((tokens, logprob))
            elif len(live) < width:
                live.append((tokens, logprob))
        ended = sorted(ended, key=lambda found: -score(*found))[:width]
        if not live:
            return ended
        if len(ended) == width:
            best = live[0][1]
            hope = max(best / n**params.length_penalty for n in (length, params.max_tokens))
            if params.early_stopping or score(*ended[-1]) >= hope:
                return ended
    return sorted([*ended, *live], key=lambda found: -score(*found))[:width]


def stopped(llm: LLM, tokens: tuple[int, ...], stop: tuple[str, ...]) -> bool:
    decoder = IncrementalDetokenizer(llm.get_tokenizer(), stop=stop, continues_text=True)
    decoder.append(tokens)
    return decoder.stopped is not None


def run(llm: LLM, prompts: list[str], params: BeamSearchParams) -> list[Found]:
    return [
        [(beam.token_ids, beam.cumulative_logprob) for beam in output.sequences]
        for output in llm.beam_search(prompts, params)
    ]


SEARCHES = {
    "wide": BeamSearchParams(beam_width=4, max_tokens=12, ignore_eos=True),
    "one beam": BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True),
    "ends": BeamSearchParams(beam_width=3, max_tokens=15, stop_token_ids=frozenset(range(60, 110))),
    "ends at a string": BeamSearchParams(beam_width=3, max_tokens=15, stop=("ab", "e", "o")),
    "ends early": BeamSearchParams(
        beam_width=3,
        max_tokens=15,
        stop_token_ids=frozenset(range(60, 110)),
        early_stopping=True,
        length_penalty=0.0,
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_as_the_slow_search(make_llm: MakeLLM, name: str) -> None:
    params = SEARCHES[name]
    plain = make_llm(enable_prefix_caching=False)
    expected = [slow(plain, prompt, params) for prompt in PROMPTS]
    assert any(len(found) == params.beam_width for found in expected)
    # Alone, all at once, without stored prefixes, and where beams have to be preempted.
    caching = make_llm()
    assert [run(caching, [prompt], params)[0] for prompt in PROMPTS] == expected
    assert run(caching, PROMPTS, params) == expected
    assert run(plain, PROMPTS, params) == expected
    tight = make_llm(
        block_size=8, kv_cache_memory=12 * 8 * 300, max_num_batched_tokens=20, admission_headroom=0
    )
    assert run(tight, PROMPTS, params) == expected
    if name == "wide":
        assert tight.engine.scheduler.counters.preemptions > 0


def test_one_beam_is_greedy(make_llm: MakeLLM) -> None:
    llm = make_llm()
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate(PROMPTS, greedy, use_tqdm=False)
    found = run(llm, PROMPTS, SEARCHES["one beam"])
    assert [beams[0][0] for beams in found] == [o.outputs[0].token_ids for o in outputs]


def test_beams_share_what_they_have_in_common(make_llm: MakeLLM) -> None:
    llm = make_llm()
    most = 0

    def observe(step: Any, result: Any) -> None:
        nonlocal most
        allocator = llm.engine.scheduler.allocator
        most = max(most, allocator.num_blocks - allocator.num_available)

    llm.engine.observers.append(observe)
    prompt = "a long prompt " * 14
    (output,) = llm.beam_search([prompt], SEARCHES["wide"])
    shared = len(output.prompt_token_ids) // 16
    assert shared >= 9
    assert most <= shared + 2 * 2 * 4  # two blocks of their own for beams and those they replace
    assert [beam.finish_reason for beam in output.sequences] == ["length"] * 4
    assert len({beam.text for beam in output.sequences}) == 4


def test_the_context_ends_a_search(make_llm: MakeLLM) -> None:
    llm = make_llm(max_model_len=32)
    params = BeamSearchParams(beam_width=2, max_tokens=100, ignore_eos=True)
    (output,) = llm.beam_search([[5] * 28], params)
    assert [len(beam.token_ids) for beam in output.sequences] == [4, 4]
    (output,) = llm.beam_search([[5] * 31], params)
    assert [len(beam.token_ids) for beam in output.sequences] == [1, 1]
    with pytest.raises(CapacityError, match="32"):
        llm.beam_search([[5] * 32], params)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"beam_width": 0}, "beam_width is 0, but it must be between 1 and 10"),
        ({"beam_width": 11}, "beam_width is 11"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens is 0"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty is 11"),
    ],
)
def test_what_cannot_be(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(LooseleafError, match=said):
        BeamSearchParams(**asked)


def test_constrained_beams_go_where_they_may(make_llm: MakeLLM) -> None:
    """The slow search with the tokens that are not allowed left out of every list."""
    llm = make_llm()
    allowed = frozenset(range(97, 109))
    params = BeamSearchParams(
        beam_width=3,
        max_tokens=5,
        ignore_eos=True,
        constraints=SamplingParams(allowed_token_ids=allowed, bad_words_token_ids=((100,),)),
    )
    (output,) = llm.beam_search(["hello there"], params)
    ids = llm.get_tokenizer().encode("hello there", add_special=True, parse_special=True)
    live: Found = [((), 0.0)]
    for _ in range(5):
        found: Found = []
        for tokens, logprob in live:
            # The log-probability of every token that is allowed, one request for each.
            for token in sorted(allowed - {100}):
                ask = SamplingParams(max_tokens=0, prompt_logprobs=True)
                (scored,) = llm.generate([[*ids, *tokens, token]], ask, use_tqdm=False)
                found.append(((*tokens, token), logprob + scored.prompt_logprobs[-1]))
        live = sorted(found, key=lambda item: -item[1])[:3]
    best = [sequence.token_ids for sequence in output.sequences]
    assert sorted(best) == sorted(tokens for tokens, _ in live)
    for sequence, (_, logprob) in zip(output.sequences, live, strict=True):
        assert sequence.cumulative_logprob == pytest.approx(logprob, abs=1e-6)


def test_beams_of_a_grammar(make_llm: MakeLLM) -> None:
    choices = ("apple", "apricot", "banana", "fig")
    params = BeamSearchParams(
        beam_width=4,
        max_tokens=12,
        constraints=SamplingParams(structured_outputs=StructuredOutputs(choice=choices)),
    )
    (output,) = make_llm().beam_search(["name a fruit"], params)
    assert {sequence.text for sequence in output.sequences} <= set(choices)
    assert {sequence.finish_reason for sequence in output.sequences} == {"stop"}
    assert len(output.sequences) >= 3


def test_beams_end_after_enough_tokens(make_llm: MakeLLM) -> None:
    llm = make_llm()
    (end,) = llm.get_tokenizer().eos_token_ids
    for least in (0, 4):
        constraints = SamplingParams(
            allowed_token_ids=frozenset({end, 97}), min_tokens=least, max_tokens=8
        )
        params = BeamSearchParams(beam_width=2, max_tokens=8, constraints=constraints)
        (output,) = llm.beam_search(["hello"], params)
        lengths = [len(s.token_ids) for s in output.sequences if s.finish_reason == "stop"]
        assert lengths
        assert min(lengths) >= least + 1


def test_a_grammars_end_ends_a_beam_whatever_ignore_eos_says(make_llm: MakeLLM) -> None:
    choices = ("apple", "fig")
    constraints = SamplingParams(structured_outputs=StructuredOutputs(choice=choices))
    params = BeamSearchParams(beam_width=2, max_tokens=30, ignore_eos=True, constraints=constraints)
    (output,) = make_llm().beam_search(["name a fruit"], params)
    assert {sequence.text for sequence in output.sequences} == set(choices)
    assert {sequence.finish_reason for sequence in output.sequences} == {"stop"}
