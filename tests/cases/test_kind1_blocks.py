"""Faults of block managers and prefix caches, reported against systems like this one."""

import itertools
import random

import pytest
from bookkeeping import Bench, expected_output, make_request

from looseleaf.core import invariants
from looseleaf.core.free_queue import BlockId
from looseleaf.core.step import Step


def test_c001_a_repeated_prompt_reuses_all_but_its_last_token() -> None:
    bench = Bench(num_blocks=64, block_size=16)
    first, second = make_request("a", range(32)), make_request("b", range(32))
    third = make_request("c", range(48))
    for request in (first, second, third):
        bench.add(request)
        bench.run()
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 31
    assert bench.outputs["b"] == bench.outputs["a"]
    # The hash chain is whole: what the third shares with them is found to the last token.
    assert third.num_cached_tokens == 32
    assert bench.outputs["c"] == expected_output(third, 4)


def test_c002_an_evicted_prompt_is_a_miss() -> None:
    bench = Bench(num_blocks=2, block_size=4, max_model_len=16)
    x, y, again = (make_request(n, p, max_tokens=1) for n, p in (("x", 8), ("y", 7), ("z", 8)))
    again.token_ids[:] = x.token_ids
    for request in (x, y, again):
        bench.add(request)
        bench.run()
    assert again.num_cached_tokens == 0
    assert bench.outputs["z"] == expected_output(again, 1)


@pytest.mark.parametrize("seed", range(3))
def test_c003_preempted_requests_find_their_own_old_blocks(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        num_blocks=40, block_size=4, max_model_len=64, max_num_seqs=64, max_num_batched_tokens=32
    )
    requests = [
        make_request(f"r{i}", rng.randint(3, 24), max_tokens=rng.randint(5, 24)) for i in range(256)
    ]
    bench.add(*requests)
    bench.run(max_steps=50_000)
    resumed = [r for r in requests if r.num_preemptions]
    assert resumed
    for request in requests:
        assert bench.outputs[request.request_id] == expected_output(
            request, request.num_output_tokens
        )
    for step in bench.steps:
        for sequence in step.sequences:
            end = sequence.first_position + len(sequence.token_ids)
            assert end <= bench_length(requests, sequence.request_id)
    # What they had stored and nobody overwrote was found again, not computed again.
    computed = sum(bench.tokens_computed(r.request_id) for r in resumed)
    from_scratch = sum(r.num_tokens * (1 + r.num_preemptions) for r in resumed)
    assert computed < from_scratch


def bench_length(requests: list, request_id: str) -> int:
    return next(r.num_tokens for r in requests if r.request_id == request_id)


@pytest.mark.parametrize("length", [15, 16, 17, 32, 1])
def test_c004_a_block_is_added_exactly_when_its_first_token_is_stored(length: int) -> None:
    bench = Bench(num_blocks=64, block_size=16)
    request = make_request("a", length, max_tokens=20)
    bench.add(request)
    while bench.scheduler.has_work:
        bench.step()
        if bench.scheduler.has_work:
            stored = request.num_computed_tokens
            assert len(bench.tables.table(request.request_id)) == -(-stored // 16)
    assert bench.outputs["a"] == expected_output(request, 20)


def test_c005_a_reused_block_answers_for_nothing_it_held_before() -> None:
    bench = Bench(num_blocks=3, block_size=4)
    bench.add(make_request("a", range(11), max_tokens=1))
    bench.run()
    pool = bench.tables.pool
    hashes = [pool.block(BlockId(i)).key for i in range(3)]
    assert all(hashes)
    bench.add(make_request("b", 2, max_tokens=1))
    bench.run()
    taken = [i for i in range(3) if pool.block(BlockId(i)).key is not hashes[i]]
    (block_id,) = taken
    old, new = hashes[block_id], pool.block(BlockId(block_id)).key
    assert pool.find(old) is None
    assert new is None or new.token_ids != old.token_ids


def test_c006_equal_prompts_in_one_step_never_read_what_is_not_written() -> None:
    bench = Bench(num_blocks=64, block_size=16, max_num_batched_tokens=256)
    one, two = make_request("a", range(64)), make_request("b", range(64))
    bench.add(one, two)
    bench.run()
    assert bench.outputs["a"] == bench.outputs["b"] == expected_output(one, 4)
    first_steps = {
        sequence.request_id: step.step_id
        for step in reversed(bench.steps)
        for sequence in step.sequences
    }
    assert first_steps["b"] > first_steps["a"], "the reader comes after the writer"
    assert two.num_cached_tokens == 63


def test_c007_the_cached_length_is_that_of_the_moment_of_admission() -> None:
    bench = Bench(num_blocks=8, block_size=4, max_num_seqs=1)
    bench.add(make_request("old", range(12), max_tokens=1))
    bench.run()
    bench.add(make_request("busy", 20, max_tokens=8))
    bench.step()
    late = make_request("late", range(13), max_tokens=2)
    assert bench.tables.match(late).num_tokens == 12
    bench.add(late)
    bench.run()  # `busy` evicts on its way what `late` could have used
    assert late.num_cached_tokens < 12
    assert bench.outputs["late"] == expected_output(late, 2)


def test_c008_cached_blocks_are_not_registered_again() -> None:
    bench = Bench(num_blocks=64, block_size=16)
    bench.add(make_request("a", range(48), max_tokens=1))
    bench.run()
    pool = bench.tables.pool
    assert pool.num_published == 3
    bench.add(make_request("b", range(80), max_tokens=1))
    bench.run()
    assert pool.num_published == 5
    keys = [pool.block(BlockId(i)).key for i in range(64)]
    hashes = [key.hash for key in keys if key is not None]
    assert len(hashes) == len(set(hashes)) == 5


@pytest.mark.parametrize("num_values", [1, 2, 256])
def test_c009_forced_collisions_never_give_another_prompts_kv(num_values: int) -> None:
    def colliding(parent: bytes, token_ids) -> bytes:
        return bytes([(sum(parent) + sum(token_ids)) % num_values])

    bench = Bench(num_blocks=32, block_size=2, hasher=colliding)
    requests = []
    for prompt in itertools.product(range(3), repeat=4):
        request = make_request(f"r{len(requests)}", [*prompt, 7], max_tokens=3)
        requests.append(request)
        bench.add(request)
        bench.run()
    for request in requests:
        assert bench.outputs[request.request_id] == expected_output(request, 3)


def test_c014_tenants_with_different_salts_share_nothing() -> None:
    bench = Bench(num_blocks=64, block_size=16)
    cached = []
    for i, salt in enumerate(["tenant-a", "tenant-b", None, "tenant-a"]):
        request = make_request(f"r{i}", range(64), salt=salt)
        bench.add(request)
        bench.run()
        cached.append(request.num_cached_tokens)
    assert cached == [0, 0, 0, 63]


def test_c016_recomputing_after_preemption_is_no_hit() -> None:
    bench = Bench(num_blocks=60, block_size=4, max_model_len=64, max_num_batched_tokens=64)
    requests = [make_request(f"r{i}", 20, max_tokens=30) for i in range(100)]
    for i, request in enumerate(requests):
        request.token_ids[:] = random.Random(i).sample(range(10**6), 20)
        bench.add(request)
    bench.run(max_steps=50_000)
    counters = bench.scheduler.counters
    assert counters.preemptions > 0
    assert counters.prefix_queries == 100 * 20
    assert counters.prefix_hits / counters.prefix_queries < 0.002
    assert all(r.num_cached_tokens == 0 for r in requests)


def test_c019_a_larger_hit_on_resuming_changes_no_figure() -> None:
    bench = Bench(num_blocks=24, block_size=4)
    short, long = make_request("s", range(8), max_tokens=1), make_request("l", range(40))
    bench.add(short)
    bench.run()
    bench.add(long)
    bench.step()
    assert long.num_cached_tokens == 8
    bench.scheduler._preempt(long)
    assert bench.tables.match(long).num_tokens > 8
    bench.run()
    assert long.num_cached_tokens == 8
    counters = bench.scheduler.counters
    assert (counters.prefix_queries, counters.prefix_hits) == (48, 8)


def test_c020_a_matched_chain_survives_the_eviction_of_everything_else() -> None:
    bench = Bench(num_blocks=6, block_size=4)
    bench.add(make_request("old", range(12), max_tokens=1))
    bench.run()
    reader = make_request("reader", [*range(12), 99], max_tokens=2)
    bench.add(reader)
    bench.step()
    matched = bench.tables.table(reader.request_id)[:3]
    pool = bench.tables.pool
    assert pool.allocate(pool.num_unreferenced) is not None
    assert [pool.ref_count(b) for b in matched] == [1, 1, 1]
    assert all(pool.find(pool.block(b).key) is pool.block(b) for b in matched)


@pytest.mark.parametrize("width", [2, 4])
def test_c023_forks_that_write_never_overwrite_each_other(width: int) -> None:
    """Beams: at each turn the best survive and fork, from a prompt that ends inside a block."""
    bench = Bench(num_blocks=128, block_size=4, max_num_seqs=32)
    root = make_request("b0", 7, max_tokens=40)
    bench.add(root)
    bench.step()
    beams, names = [root], itertools.count(1)
    for turn in range(20):
        for parent in list(beams):
            if len(beams) < width:
                child = make_request(
                    f"b{next(names)}",
                    [*parent.token_ids[: parent.num_computed_tokens], 5000 + turn],
                    max_tokens=40,
                )
                bench.outputs[child.request_id] = []
                bench.scheduler.fork(parent.request_id, child)
                beams.append(child)
        bench.step()
        if turn % 3 == 2:
            bench.abort(beams.pop(0).request_id)
    for beam in beams:
        assert beam.output_token_ids == expected_output(beam, beam.num_output_tokens)
    assert bench.tables.num_copies > 0


def test_c024_samples_share_the_prompt_and_copy_its_last_block_once_each() -> None:
    bench = Bench(num_blocks=32, block_size=4)
    request = make_request("a", 6, max_tokens=3, n=2)
    bench.add(request)
    bench.step()
    pool = bench.tables.pool
    assert [pool.ref_count(b) for b in bench.tables.table(request.request_id)] == [2, 2]
    bench.step()
    assert bench.tables.num_copies == 1
    bench.run()
    other = make_request("a", 6)
    other.sample_index = 1
    assert bench.outputs == {"a": expected_output(request, 3), "a/1": expected_output(other, 3)}


def test_c025_aborting_in_every_state_frees_everything_within_the_step() -> None:
    bench = Bench(num_blocks=24, block_size=4, max_num_batched_tokens=12, max_num_seqs=6)
    for i in range(50):
        prompt = range(20) if i % 3 else 9 + i % 7
        bench.add(make_request(f"r{i}", prompt, max_tokens=12, n=1 + i % 2))
    seen = set()
    rng = random.Random(0)
    for _ in range(60):
        bench.step()
        live = sorted(bench.scheduler.requests)
        if not live:
            break
        for request_id in rng.sample(live, min(2, len(live))):
            if request_id not in bench.scheduler.requests:
                continue  # ended with the sibling that computed its prompt
            request = bench.scheduler.requests[request_id]
            seen.add((str(request.status), request.num_output_tokens > 0))
            bench.abort(request_id)
            assert bench.tables.table(request.request_id) == ()
    for request_id in sorted(bench.scheduler.requests):
        bench.scheduler.abort(request_id)
    assert bench.num_in_use() == 0
    assert {status for status, _ in seen} >= {"waiting", "running", "held"}


def test_c026_counts_of_free_and_evictable_blocks_are_never_negative() -> None:
    rng = random.Random(7)
    bench = Bench(num_blocks=16, block_size=2, max_model_len=24)
    for i in range(300):
        if rng.random() < 0.5:
            prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 12))]
            bench.add(make_request(f"r{i}", prompt, max_tokens=rng.randint(1, 6)))
        bench.step()
        pool = bench.tables.pool
        assert pool.num_free >= 0
        assert pool.num_evictable >= 0
        held = sum(pool.ref_count(BlockId(b)) > 0 for b in range(16))
        assert pool.num_free + pool.num_evictable + held == 16


def test_c027_a_long_answer_resumes_with_prompt_and_output() -> None:
    bench = Bench(num_blocks=300, block_size=4, max_num_batched_tokens=64)
    request = make_request("a", 3, max_tokens=1024)
    bench.add(request)
    while request.num_output_tokens < 500:
        bench.step()
    bench.tables.pool.forget_all()  # or it would find all of it again
    bench.scheduler._preempt(request)
    before = list(request.output_token_ids)
    resumed = bench.step()
    assert request.output_token_ids[:500] == before
    assert resumed.sequences[0].first_position == 0
    bench.run()
    assert bench.outputs["a"] == expected_output(request, 1024)
    assert len(bench.outputs["a"]) == 1024


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_c030_a_long_prompt_gives_the_same_output_with_caching_on_and_off(prefix_caching) -> None:
    bench = Bench(
        num_blocks=600, block_size=16, max_num_batched_tokens=512, prefix_caching=prefix_caching
    )
    for name in ("a", "b"):
        request = make_request(name, range(4096), max_tokens=200)
        bench.add(request)
        bench.run()
        assert len(bench.outputs[name]) == 200
        assert bench.outputs[name] == expected_output(request, 200)


def test_c031_no_answer_holds_the_marker_of_another_prompt() -> None:
    """The scripted executor's tokens are a mark of everything before them, so any foreign KV under
    reuse and preemption would show."""
    bench = Bench(num_blocks=48, block_size=4, max_model_len=96, max_num_seqs=24)
    requests = [
        make_request(f"r{i}", [*range(14), 9000 + i, *range(3)], max_tokens=24) for i in range(60)
    ]
    bench.add(*requests)
    bench.run(max_steps=50_000)
    assert bench.scheduler.counters.preemptions > 0
    assert bench.scheduler.counters.prefix_hits > 0
    for request in requests:
        assert bench.outputs[request.request_id] == expected_output(request, 24)


def test_c034_slots_follow_the_table_when_blocks_are_scattered() -> None:
    bench = Bench(num_blocks=32, block_size=4)
    pool = bench.tables.pool
    taken = pool.allocate(32)
    random.Random(3).shuffle(taken)
    pool.release(taken)
    old = make_request("old", range(10), max_tokens=1)
    bench.add(old)
    bench.run()
    request = make_request("a", [*range(10), 50, 51, 52, 53, 54], max_tokens=9)
    bench.add(request)
    step: Step = bench.step()
    table = step.sequences[0].block_ids
    assert list(table) != sorted(table)
    bench.run()
    assert bench.outputs["a"] == expected_output(request, 9)
    invariants.check(bench.scheduler)
