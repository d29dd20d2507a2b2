import pytest
from bookkeeping import Bench, expected_output, make_request

from looseleaf.core.errors import CapacityError
from looseleaf.core.hashing import sha256_hasher
from looseleaf.core.request import Status
from looseleaf.core.step import StepResult


def scheduled(step) -> dict[str, int]:
    """Request id -> tokens in this step."""
    return {sequence.request_id: len(sequence.token_ids) for sequence in step.sequences}


def test_one_request_runs_to_its_end() -> None:
    bench = Bench()
    request = make_request("a", 5, max_tokens=3)
    bench.add(request)
    bench.run()
    assert bench.outputs["a"] == expected_output(request, 3)
    assert bench.finish_reasons == {"a": "length"}
    assert [scheduled(step) for step in bench.steps] == [{"a": 5}, {"a": 1}, {"a": 1}]
    assert bench.num_in_use() == 0


def test_a_stop_token_ends_a_request_and_is_its_last_token() -> None:
    request = make_request("a", 5, max_tokens=50)
    stop = expected_output(request, 3)[2]
    bench = Bench()
    bench.add(make_request("a", 5, max_tokens=50, stop_token_ids=frozenset({stop})))
    bench.run()
    assert bench.outputs["a"] == expected_output(request, 3)
    assert bench.finish_reasons == {"a": "stop"}


def test_requests_join_and_leave_at_any_step() -> None:
    bench = Bench()
    bench.add(make_request("a", 4, max_tokens=6))
    bench.step()
    bench.add(make_request("b", 3, max_tokens=2))
    assert scheduled(bench.step()) == {"a": 1, "b": 3}
    assert scheduled(bench.step()) == {"a": 1, "b": 1}
    assert scheduled(bench.step()) == {"a": 1}


def test_a_prompt_is_computed_in_chunks_of_the_token_budget() -> None:
    bench = Bench(max_num_batched_tokens=7)
    request = make_request("a", 20, max_tokens=2)
    bench.add(request)
    bench.run()
    assert [scheduled(step)["a"] for step in bench.steps] == [7, 7, 6, 1]
    assert [len(s.samples) for step in bench.steps for s in step.sequences] == [0, 0, 1, 1]
    assert bench.outputs["a"] == expected_output(request, 2)


def test_max_num_seqs_is_kept() -> None:
    bench = Bench(max_num_seqs=2)
    bench.add(*(make_request(name, 3, max_tokens=3) for name in "abc"))
    assert set(scheduled(bench.step())) == {"a", "b"}
    bench.run()
    assert set(bench.finish_reasons) == {"a", "b", "c"}


def test_running_requests_go_before_waiting_ones() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add(make_request("a", 4, max_tokens=9))
    bench.step()
    bench.add(make_request("b", 6, max_tokens=1))
    assert scheduled(bench.step()) == {"a": 1, "b": 3}


def test_first_come_first_served() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add(*(make_request(name, 3, max_tokens=1) for name in "bac"))
    bench.run()
    assert list(bench.finish_reasons) == ["b", "a", "c"]


def test_priority_goes_before_arrival() -> None:
    bench = Bench(max_num_seqs=1, policy="priority")
    for name, priority in {"low": 5, "high": 1, "also": 5, "top": 0}.items():
        bench.add(make_request(name, 3, max_tokens=1, priority=priority))
    bench.run()
    assert list(bench.finish_reasons) == ["top", "high", "low", "also"]


def test_preempted_requests_give_the_same_tokens() -> None:
    alone = {name: expected_output(make_request(name, 6), 20) for name in "abcd"}
    bench = Bench(num_blocks=9, block_size=4)
    bench.add(*(make_request(name, 6, max_tokens=20) for name in "abcd"))
    bench.run()
    assert bench.scheduler.counters.preemptions > 0
    assert bench.outputs == alone


def test_room_is_left_for_those_who_run_to_grow() -> None:
    """Two fit at first; both together grow to ten blocks, of which there are nine."""
    preemptions = {}
    for headroom in (0, 8, 1000):
        bench = Bench(num_blocks=9, block_size=4, admission_headroom=headroom)
        bench.add(*(make_request(name, 6, max_tokens=14) for name in "ab"))
        bench.step()
        assert len(bench.scheduler.running) == (2 if headroom <= 8 else 1)
        bench.run()
        preemptions[headroom] = bench.scheduler.counters.preemptions
        assert all(len(output) == 14 for output in bench.outputs.values())
    assert preemptions[0] > 0 == preemptions[1000]


def test_what_runs_out_soon_needs_no_more_room_than_it_will_take() -> None:
    bench = Bench(num_blocks=9, block_size=4, admission_headroom=1000)
    bench.add(*(make_request(name, 6, max_tokens=2) for name in "abcd"))
    bench.step()
    assert len(bench.scheduler.running) == 4
    bench.run()
    assert bench.scheduler.counters.preemptions == 0


def test_the_head_is_never_preempted() -> None:
    bench = Bench(num_blocks=9, block_size=4, prefix_caching=False)
    requests = [make_request(name, 6, max_tokens=20) for name in "abcd"]
    bench.add(*requests)
    bench.run()
    assert requests[0].num_preemptions == 0
    assert next(iter(bench.finish_reasons)) == "a"


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    bench = Bench(max_num_batched_tokens=256)
    requests = [make_request(f"r{i}", range(18), max_tokens=4) for i in range(8)]
    bench.add(*requests)
    bench.step()
    assert bench.scheduler.counters.held_back == 7
    bench.run()
    assert bench.tokens_computed("r0") == 18 + 3
    for request in requests[1:]:
        assert request.num_cached_tokens == 17
        assert bench.tokens_computed(request.request_id) == 1 + 3
    assert all(bench.outputs[r.request_id] == expected_output(r, 4) for r in requests)


def test_others_pass_a_request_that_is_held_back() -> None:
    bench = Bench(max_num_batched_tokens=8, long_prefill_token_threshold=4)
    bench.add(make_request("leader", range(24), max_tokens=1))
    bench.step()
    bench.add(make_request("held", range(24), max_tokens=1), make_request("other", 3, max_tokens=1))
    bench.run()
    assert list(bench.finish_reasons) == ["other", "leader", "held"]


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_a_held_request_goes_ahead_when_its_leader_is_gone(how: str) -> None:
    bench = Bench(num_blocks=12, max_num_batched_tokens=8)
    leader = make_request("leader", range(32), max_tokens=1, priority=1)
    held = make_request("held", range(32), max_tokens=1, priority=1)
    bench.add(leader)
    bench.step()
    bench.add(held)
    bench.step()
    assert held.status is Status.HELD
    if how == "abort":
        bench.abort("leader")
    else:
        bench.scheduler._preempt(leader)
    assert held.status is Status.WAITING
    bench.run()
    assert bench.outputs["held"] == expected_output(held, 1)
    assert held.num_cached_tokens >= 16 - 1, "what the leader had published is used"


def test_samples_of_one_prompt_fork_after_one_prefill() -> None:
    bench = Bench(block_size=4)
    request = make_request("a", 7, max_tokens=5, n=4)
    bench.add(request)
    first = bench.step()
    assert scheduled(first) == {"a": 7}
    assert [s.request_id for s in first.samples()] == ["a", "a/1", "a/2", "a/3"]
    table = bench.tables.table(request.request_id)
    assert [bench.tables.pool.ref_count(b) for b in table] == [4, 4]
    second = bench.step()
    assert len(second.copies) == 3, "the last to write needs no copy"
    bench.run()
    family = {"a": request, **{c.request_id: c for c in request.children}}
    assert len(bench.outputs) == 4
    for index, name in enumerate(["a", "a/1", "a/2", "a/3"]):
        sample = make_request("a", 7)
        sample.sample_index = index
        assert bench.outputs[name] == expected_output(sample, 5), name
    assert family["a"].num_cached_tokens == 0
    assert bench.scheduler.counters.prefix_hits == 0


def test_samples_that_find_no_seat_wait_for_one() -> None:
    bench = Bench(max_num_seqs=2)
    bench.add(make_request("a", 7, max_tokens=3, n=5))
    bench.run()
    for index, name in enumerate(["a", "a/1", "a/2", "a/3", "a/4"]):
        sample = make_request("a", 7)
        sample.sample_index = index
        assert bench.outputs[name] == expected_output(sample, 3)


def test_admission_keeps_the_blocks_that_samples_will_copy_into() -> None:
    # 5 samples of a 6-token prompt: 2 blocks, and 4 copies of the second one right after.
    bench = Bench(num_blocks=6, block_size=4)
    bench.add(make_request("a", 6, max_tokens=2, n=5), make_request("b", 3, max_tokens=1))
    assert set(scheduled(bench.step())) == {"a"}
    bench.step()
    assert bench.scheduler.counters.preemptions == 0
    bench.run()


def test_one_sample_can_be_aborted_before_and_after_the_fork() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add(make_request("a", 8, max_tokens=4, n=3))
    bench.step()
    bench.abort("a/1")
    bench.step()
    bench.abort("a")
    bench.run()
    assert len(bench.outputs["a/2"]) == 4
    assert bench.outputs["a/1"] == []
    assert bench.num_in_use() == 0


def test_aborting_an_uncomputed_prompt_ends_all_its_samples() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add(make_request("a", 8, max_tokens=4, n=3))
    bench.step()
    bench.abort("a")
    assert not bench.scheduler.has_work
    assert bench.num_in_use() == 0


def test_abort_while_the_step_is_computed() -> None:
    bench = Bench()
    a, b = make_request("a", 5), make_request("b", 6)
    bench.add(a, b)
    step = bench.scheduler.schedule(0.0)
    result = bench.executor.execute(step)
    bench.scheduler.abort(a.request_id)
    updates = bench.scheduler.apply(result, 0.0)
    assert [u.request_id for u in updates] == ["b"]
    assert updates[0].token_ids == tuple(expected_output(b, 1))


def test_a_running_request_can_be_forked_at_any_time() -> None:
    bench = Bench()
    parent = make_request("p", 6, max_tokens=20)
    bench.add(parent)
    for _ in range(3):
        bench.step()
    child = make_request("c", [*parent.token_ids[:-1], 77], max_tokens=6)
    in_use = bench.num_in_use()
    bench.scheduler.fork(parent.request_id, child)
    bench.outputs["c"] = []
    assert bench.num_in_use() == in_use
    bench.run()
    assert bench.outputs["c"] == expected_output(child, 6)
    assert bench.outputs["p"] == expected_output(parent, 20)


def test_a_fork_must_begin_like_its_parent() -> None:
    bench = Bench()
    bench.add(make_request("p", 6, max_tokens=20))
    bench.step()
    with pytest.raises(ValueError, match="computed tokens"):
        bench.scheduler.fork("p", make_request("c", [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    with pytest.raises(KeyError):
        bench.scheduler.fork("nobody", make_request("c", 3))


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_output_ends_at_the_context(max_tokens: int | None) -> None:
    bench = Bench(max_model_len=16)
    bench.add(make_request("a", 9, max_tokens=max_tokens))
    bench.run()
    assert len(bench.outputs["a"]) == 7
    assert bench.finish_reasons["a"] == "length"


def test_max_tokens_0_only_computes_the_prompt() -> None:
    bench = Bench(max_model_len=16, max_num_batched_tokens=5)
    bench.add(make_request("a", 16, max_tokens=0, n=2))
    bench.run()
    assert bench.outputs == {"a": [], "a/1": []}
    assert bench.finish_reasons == {"a": "length", "a/1": "length"}


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    bench = Bench(max_model_len=16)
    with pytest.raises(CapacityError, match=r"17 tokens.*at most 16"):
        bench.add(make_request("a", 17))
    with pytest.raises(CapacityError, match=r"16 tokens.*at most 16"):
        bench.add(make_request("a", 16))
    assert not bench.scheduler.has_work


def test_two_requests_cannot_have_one_id() -> None:
    bench = Bench()
    bench.add(make_request("a", 3))
    with pytest.raises(ValueError, match="'a' is in use"):
        bench.add(make_request("a", 3))


def test_steps_and_results_must_alternate() -> None:
    bench = Bench()
    bench.add(make_request("a", 3))
    step = bench.scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="step 1"):
        bench.scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="step 7"):
        bench.scheduler.apply(StepResult(7, ()), 0.0)
    assert step.num_tokens == 3


def test_nobody_needs_it_so_a_long_prompt_gets_the_whole_budget() -> None:
    bench = Bench(max_num_batched_tokens=16, num_blocks=128)
    bench.add(make_request("long", 100, max_tokens=1))
    assert scheduled(bench.step()) == {"long": 16}
    bench.add(make_request("short", 5, max_tokens=1))
    assert scheduled(bench.step()) == {"long": 11, "short": 5}


def test_several_long_prompts_share_one_share() -> None:
    bench = Bench(max_num_batched_tokens=16, num_blocks=256)
    bench.add(*(make_request(name, 100, max_tokens=1) for name in "abc"))
    bench.step()
    bench.add(make_request("short", 8, max_tokens=1))
    step = scheduled(bench.step())
    assert step["short"] == 8
    assert sum(step.values()) == 16


@pytest.mark.parametrize("rule", ["max", "pow2", "oracle"])
def test_the_engine_runs_on_contiguous_regions(rule: str) -> None:
    bench = Bench(num_blocks=64, max_model_len=40, allocator=rule)
    requests = [make_request(f"r{i}", 3 + i, max_tokens=7, n=1 + i % 3) for i in range(12)]
    bench.add(*requests)
    bench.run()
    for request in requests:
        assert bench.outputs[request.request_id] == expected_output(request, 7)
    assert bench.num_in_use() == 0


def test_step_is_plain_data_that_compares() -> None:
    def steps() -> list:
        bench = Bench(num_blocks=9)
        bench.add(*(make_request(name, 6, max_tokens=20, n=2) for name in "abc"))
        bench.run()
        return bench.steps

    assert steps() == steps()


def test_a_victim_that_was_to_copy_in_this_very_step_publishes_nothing_of_it() -> None:
    """`low` is admitted with a copy of a partial block and gives way before the step is computed:
    what the copy would have brought must not be found."""
    bench = Bench(num_blocks=256, max_num_seqs=3, max_num_batched_tokens=16, policy="priority")
    bench.add(make_request("seed", range(1, 10), max_tokens=1))
    bench.run()
    bench.add(make_request("leader", range(100, 240), priority=10))
    bench.step()
    bench.add(make_request("busy", [50, 51], max_tokens=20, priority=0))
    bench.step()
    low = make_request("low", [1, 2, 3, 4, 5, 6, 7, 99, 98], priority=5)
    # Two seats for the urgent one: `leader` and `low` both have to go.
    urgent = make_request("urgent", 3, max_tokens=9, n=2, priority=1)
    bench.add(low)
    bench.scheduler.waiting.append(urgent)  # behind `low`, as if it had come while it was admitted
    bench.scheduler.set_limits(urgent)
    bench.scheduler._register(urgent, *urgent.children)
    step = bench.scheduler.schedule(bench.now)
    assert "low" not in [s.request_id for s in step.sequences]
    assert low.num_preemptions == 1
    probe = make_request("probe", [1, 2, 3, 4, 5, 6, 7, 55, 56])
    match = bench.tables.match(probe)
    key = bench.tables.pool.block(match.source).key
    assert len(key.token_ids) == 4, "the full block of `seed`, not what `low` never stored"


def test_a_discarded_step_leaves_nothing_to_be_found_that_was_not_stored() -> None:
    bench = Bench(num_blocks=64)
    bench.add(make_request("seed", range(1, 10), max_tokens=1))
    bench.run()
    other = make_request("other", [1, 2, 3, 4, 5, 6, 77, 78], max_tokens=3)
    bench.add(other)
    step = bench.scheduler.schedule(bench.now)
    assert step.copies
    bench.scheduler.discard()
    reader = make_request("reader", [1, 2, 3, 4, 5, 6, 77, 79], max_tokens=3)
    bench.add(reader)
    bench.run()
    assert bench.outputs["other"] == expected_output(other, 3)
    assert bench.outputs["reader"] == expected_output(reader, 3)


def test_a_fork_that_can_never_fit_is_refused() -> None:
    bench = Bench(num_blocks=4, max_model_len=64)
    parent = make_request("p", 4, max_tokens=4)
    bench.add(parent)
    bench.step()
    with pytest.raises(CapacityError, match="has 4"):
        bench.scheduler.fork("p", make_request("c", [*parent.token_ids[:4], 9], max_tokens=40))
    assert set(bench.scheduler.requests) == {"p"}


def test_a_fork_keeps_to_its_parents_tenant() -> None:
    bench = Bench()
    parent = make_request("p", 8, max_tokens=9, salt="a")
    bench.add(parent)
    bench.step()
    child = make_request("c", [*parent.token_ids[:8], 9], salt="b")
    with pytest.raises(ValueError, match="extra keys"):
        bench.scheduler.fork("p", child)


def test_a_fork_that_first_runs_on_leftover_budget_brings_its_whole_table() -> None:
    bench = Bench(num_blocks=64, max_num_batched_tokens=16, long_prefill_token_threshold=2)
    parent = make_request("p", 2, max_tokens=10)
    bench.add(make_request("long", 50, max_tokens=2), parent)
    for _ in range(2):
        bench.step()
    child = make_request("c", [*parent.token_ids[: parent.num_computed_tokens], 9, 8, 7, 6])
    bench.outputs["c"] = []
    bench.scheduler.fork("p", child)
    bench.run()
    assert bench.outputs["c"] == expected_output(child, 4)


def test_a_family_with_an_id_in_use_changes_nothing() -> None:
    bench = Bench()
    bench.add(make_request("a/1", 4))
    with pytest.raises(ValueError, match="'a/1' is in use"):
        bench.scheduler.add(make_request("a", 4, n=2))
    assert set(bench.scheduler.requests) == {"a/1"}
    bench.run()


def test_an_urgent_request_is_not_held_back_for_one_that_is_less_so() -> None:
    bench = Bench(num_blocks=512, max_num_batched_tokens=4, policy="priority")
    bench.add(make_request("leader", range(40), priority=10))
    bench.step()
    urgent = make_request("urgent", range(41), max_tokens=4, priority=0)
    bench.add(urgent)
    bench.step()
    assert urgent.status is Status.RUNNING


def test_an_urgent_long_prompt_does_not_wait_for_a_less_urgent_one() -> None:
    bench = Bench(num_blocks=4096, max_num_batched_tokens=16, policy="priority")
    bench.add(make_request("low", 4000, max_tokens=4, priority=10))
    bench.step()
    urgent = make_request("urgent", 100, max_tokens=4, priority=0)
    bench.add(urgent)
    bench.step()
    assert urgent.num_computed_tokens > 0


def test_a_short_request_passes_any_number_of_long_ones() -> None:
    bench = Bench(num_blocks=40_000, block_size=16, max_num_batched_tokens=64, max_num_seqs=8)
    bench.add(*(make_request(f"long{i}", 1000 + i, max_tokens=1) for i in range(150)))
    short = make_request("short", 5, max_tokens=1)
    bench.add(short)
    for _ in range(2):
        bench.step()
    assert short.first_token_time is not None


def test_samples_do_not_hash_the_prompt_again() -> None:
    hashed = []

    def counting(parent: bytes, token_ids) -> bytes:
        hashed.append(tuple(token_ids))
        return sha256_hasher(parent, token_ids)

    bench = Bench(num_blocks=256, hasher=counting)
    bench.add(make_request("a", 40, max_tokens=9, n=8))
    bench.run()
    prompt = {tuple(make_request("a", 40).token_ids[i : i + 4]) for i in range(0, 40, 4)}
    assert sum(tokens in prompt for tokens in hashed) == 10


def test_prompt_logprobs_of_samples_come_once() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add(make_request("a", 9, n=2, max_tokens=3, prompt_logprobs=True))
    bench.run()
    assert sum(len(update.prompt_logprobs) for update in bench.updates) == 8


def test_a_parent_that_ends_with_its_first_token_leaves_its_samples() -> None:
    stop = expected_output(make_request("a", 7), 1)[0]
    bench = Bench()
    bench.add(make_request("a", 7, n=2, max_tokens=4, stop_token_ids=frozenset({stop})))
    bench.run()
    assert bench.outputs["a"] == [stop]
    assert len(bench.outputs["a/1"]) == 4


def test_a_prompt_in_the_making_keeps_seats_and_blocks_from_newcomers() -> None:
    bench = Bench(num_blocks=12, max_num_seqs=3, max_num_batched_tokens=8)
    bench.add(make_request("a", 20, n=3, max_tokens=2))
    bench.step()
    bench.add(make_request("b", 3, max_tokens=1))
    assert set(scheduled(bench.step())) == {"a"}, "its samples have the other two seats"
    bench.run()


def test_an_ended_sequence_is_found_to_the_token() -> None:
    bench = Bench()
    first = make_request("a", 6, max_tokens=60)
    bench.add(first)
    for _ in range(4):
        bench.step()
    bench.abort("a")
    again = make_request("b", [*first.token_ids[:9], 5])
    assert bench.tables.match(again).num_tokens == 9
