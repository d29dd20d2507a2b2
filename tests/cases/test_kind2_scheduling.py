"""Faults of schedulers and batching, reported against systems like this one."""

import random

import pytest
from bookkeeping import VOCAB_SIZE, Bench, expected_output, make_request

from looseleaf.core.errors import CapacityError
from looseleaf.executors.scripted import expected_logprob


def test_c037_what_can_never_fit_is_refused_at_once_with_both_numbers() -> None:
    bench = Bench(num_blocks=32, block_size=16, max_model_len=4096)
    with pytest.raises(CapacityError, match=r"needs 38 KV blocks.*600 tokens.*has 32 \(512 tokens"):
        bench.add(make_request("big", 600, max_tokens=8))
    small = make_request("small", 20, max_tokens=3)
    bench.add(small)
    bench.run()
    assert bench.outputs == {"small": expected_output(small, 3)}


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_c038_two_requests_that_need_more_than_there_is_both_finish(spare, caching) -> None:
    need = (40 + 40 - 1 + 3) // 4
    bench = Bench(num_blocks=need + spare, block_size=4, prefix_caching=caching)
    a, b = make_request("a", 40, max_tokens=40), make_request("b", 39, max_tokens=40)
    bench.add(a, b)
    bench.run(max_steps=400)
    assert bench.outputs == {"a": expected_output(a, 40), "b": expected_output(b, 40)}
    assert a.num_preemptions == 0, "the head is never preempted"
    assert b.num_preemptions <= 2


def test_c039_with_nothing_running_something_is_admitted() -> None:
    bench = Bench(num_blocks=8, block_size=4)
    # The pool is full of evictable blocks, and the head needs all of them.
    bench.add(make_request("filler", range(30), max_tokens=1))
    bench.run()
    head = make_request("head", [*range(26), 1, 2], max_tokens=4)
    bench.add(head, make_request("next", 3, max_tokens=1))
    assert bench.step().sequences
    bench.run()
    assert bench.outputs["head"] == expected_output(head, 4)


def test_c040_a_higher_priority_takes_the_place_of_the_lowest_and_latest() -> None:
    bench = Bench(max_num_seqs=2, policy="priority")
    first = make_request("first", 5, max_tokens=60, priority=10)
    second = make_request("second", 6, max_tokens=60, priority=10)
    bench.add(first, second)
    for _ in range(5):
        bench.step()
    urgent = make_request("urgent", 4, max_tokens=3, priority=0)
    bench.add(urgent)
    step = bench.step()
    assert {s.request_id for s in step.sequences} == {"first", "urgent"}
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    bench.run()
    assert bench.outputs["second"] == expected_output(second, 60)
    assert list(bench.finish_reasons) == ["urgent", "first", "second"]
    assert second.num_preemptions == 1


def test_c040_equal_priority_never_preempts() -> None:
    bench = Bench(max_num_seqs=2, policy="priority")
    bench.add(*(make_request(f"r{i}", 5, max_tokens=9, priority=3) for i in range(8)))
    bench.run()
    assert bench.scheduler.counters.preemptions == 0


def test_c040_a_victim_is_unwound_from_the_step_in_the_making() -> None:
    bench = Bench(num_blocks=10, block_size=4, policy="priority")
    low = make_request("low", 30, max_tokens=6, priority=5)
    bench.add(low)
    bench.step()
    bench.add(make_request("urgent", 12, max_tokens=3, priority=0))
    step = bench.step()
    assert [s.request_id for s in step.sequences] == ["urgent"]
    assert "low" in step.finished
    bench.run()
    assert bench.outputs["low"] == expected_output(low, 6)


def test_c042_short_requests_are_not_stuck_behind_a_long_prompt() -> None:
    bench = Bench(num_blocks=700, block_size=16, max_num_batched_tokens=512, max_num_seqs=64)
    bench.add(make_request("long", 8192, max_tokens=4))
    for _ in range(2):
        bench.step()
    shorts = [make_request(f"s{i}", 50, max_tokens=4) for i in range(10)]
    bench.add(*shorts)
    arrival = bench.now
    bench.run()
    # Half of each step is theirs: 10 x 50 tokens are computed within two steps.
    assert max(r.first_token_time - arrival for r in shorts) <= 1
    assert len(bench.outputs["long"]) == 4


def test_c042_many_long_prompts_do_not_shut_short_ones_out_either() -> None:
    bench = Bench(num_blocks=2000, block_size=16, max_num_batched_tokens=512, max_num_seqs=64)
    bench.add(*(make_request(f"long{i}", 2000 + i, max_tokens=4) for i in range(8)))
    for _ in range(3):
        bench.step()
    short = make_request("short", 50, max_tokens=4)
    bench.add(short)
    arrival = bench.now
    bench.run()
    assert short.first_token_time - arrival <= 1
    assert len(bench.outputs) == 9


@pytest.mark.parametrize("budget", [64, 11, 1])
def test_c044_prompt_logprobs_are_joined_over_chunks(budget: int) -> None:
    bench = Bench(num_blocks=64, max_num_batched_tokens=budget)
    request = make_request("a", 33, max_tokens=1, prompt_logprobs=True)
    bench.add(request)
    bench.run()
    scores = [score for update in bench.updates for score in update.prompt_logprobs]
    prompt = request.token_ids[:33]
    assert scores == [expected_logprob(prompt[:i], prompt[i]) for i in range(1, 33)]
    assert bench.outputs["a"] == expected_output(request, 1)
    assert len([u for u in bench.updates if u.token_ids]) == 1, "no output for a partial prompt"


@pytest.mark.parametrize("length", [31, 32, 33])
def test_c045_prompt_logprobs_are_the_same_when_the_prompt_is_cached(length: int) -> None:
    bench = Bench(num_blocks=64, block_size=16)
    scores = []
    for name in ("first", "second"):
        request = make_request(name, range(length), max_tokens=1, prompt_logprobs=True)
        bench.add(request)
        bench.updates.clear()
        bench.run()
        scores.append([score for update in bench.updates for score in update.prompt_logprobs])
        assert request.num_cached_tokens == 0
    assert scores[0] == scores[1]
    assert len(scores[0]) == length - 1


def test_prompt_logprobs_come_once_although_the_prompt_is_computed_twice() -> None:
    bench = Bench(num_blocks=64, max_num_batched_tokens=10)
    request = make_request("a", 33, max_tokens=2, prompt_logprobs=True)
    bench.add(request)
    bench.step()
    bench.step()
    bench.scheduler._preempt(request)
    bench.run()
    scores = [score for update in bench.updates for score in update.prompt_logprobs]
    assert scores == [
        expected_logprob(request.token_ids[:i], request.token_ids[i]) for i in range(1, 33)
    ]


def test_tokens_depend_on_the_request_alone_whatever_the_settings() -> None:
    rng = random.Random(11)
    prompts = [
        [rng.randint(0, VOCAB_SIZE - 1) for _ in range(rng.randint(1, 40))] for _ in range(9)
    ]
    expected = [expected_output(make_request("x", p), 12) for p in prompts]
    for settings in (
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 1},
        {"num_blocks": 14, "max_model_len": 53},
        {"prefix_caching": False},
        {"block_size": 16, "num_blocks": 8},
        {"allocator": "max", "max_model_len": 52},
    ):
        bench = Bench(**settings)
        requests = [make_request(f"r{i}", p, max_tokens=12) for i, p in enumerate(prompts)]
        bench.add(*requests)
        bench.run()
        assert [bench.outputs[r.request_id] for r in requests] == expected, settings
