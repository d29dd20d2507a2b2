"""Memory besides the pool: what is evicted is kept, and brought back where it is wanted."""

from collections.abc import Sequence

from bookkeeping import Bench, expected_output, make_request, make_tables

from looseleaf.core.allocator import Match
from looseleaf.core.hashing import BlockKey


def run(bench: Bench, request_id: str, prompt: range, max_tokens: int = 1) -> int:
    """How many of its tokens were found stored."""
    request = make_request(request_id, prompt, max_tokens=max_tokens)
    bench.add(request)
    bench.run()
    assert bench.outputs[request_id] == expected_output(request, max_tokens)
    assert request.num_cached_tokens is not None
    return request.num_cached_tokens


def test_an_evicted_prefix_is_loaded() -> None:
    bench = Bench(num_blocks=8, tier_blocks=20)
    assert run(bench, "a", range(30)) == 0
    assert run(bench, "b", range(100, 130)) == 0  # takes the blocks of a
    assert run(bench, "a again", range(30)) == 28
    assert bench.tiers is not None
    assert bench.tiers.counters.loaded_from_host == 7
    assert bench.tokens_computed("a again") == 2
    # What was loaded is shared as usual from then on.
    loads = [step.loads for step in bench.steps if step.loads]
    assert run(bench, "a once more", range(30)) == 28  # no block is left for a copy
    assert [step.loads for step in bench.steps if step.loads] == loads


def test_what_is_left_in_the_pool_is_not_loaded() -> None:
    bench = Bench(num_blocks=8, tier_blocks=20)
    run(bench, "a", range(30))
    run(bench, "b", range(100, 112))  # takes three, from the end of a
    assert run(bench, "a again", range(30)) == 28
    (step,) = (step for step in bench.steps if step.loads)
    assert 0 < len(step.loads) < 7
    assert len({load.block_id for load in step.loads}) == len(step.loads)


def test_a_preempted_request_is_loaded_and_not_computed_again() -> None:
    for tier_blocks, least, most in ((None, 1, 100), (40, 0, 10)):
        bench = Bench(num_blocks=10, tier_blocks=tier_blocks, max_num_seqs=4)
        requests = [make_request(name, 12, max_tokens=20) for name in "abc"]
        bench.add(*requests)
        bench.run()
        for request in requests:
            assert bench.outputs[request.request_id] == expected_output(request, 20)
        computed = sum(bench.tokens_computed(request.request_id) for request in requests)
        again = computed - 3 * (12 + 19)
        assert bench.scheduler.counters.preemptions > 0
        assert least <= again <= most + 4 * bench.scheduler.counters.preemptions


def test_equal_prompts_that_arrive_together_are_loaded_once() -> None:
    bench = Bench(num_blocks=16, tier_blocks=40)
    run(bench, "a", range(30))
    run(bench, "b", range(100, 162))
    bench.add(*(make_request(f"r{i}", range(30), max_tokens=2) for i in range(3)))
    bench.run()
    hashes = [load.hash for step in bench.steps for load in step.loads]
    assert len(hashes) == len(set(hashes)) == 7
    assert bench.scheduler.counters.held_back == 2


def test_the_last_token_is_computed_also_when_all_is_kept() -> None:
    bench = Bench(num_blocks=8, tier_blocks=20)
    run(bench, "a", range(28))
    run(bench, "b", range(100, 130))
    assert run(bench, "a again", range(28)) == 24


def test_what_is_gone_when_it_is_wanted_is_computed() -> None:
    bench = Bench(num_blocks=8, tier_blocks=20)
    run(bench, "a", range(30))
    run(bench, "b", range(100, 130))
    request = make_request("a again", range(30), max_tokens=2)
    bench.add(request)
    assert bench.tiers is not None
    assert bench.tiers.host is not None
    step = bench.scheduler.schedule(0.0)
    assert len(step.loads) == 7
    bench.tiers.host.take_all()
    assert not bench.tiers.move(step, bench.executor)
    assert bench.tiers.counters.lost == 1
    bench.scheduler.discard()
    bench.run()
    assert bench.outputs["a again"] == expected_output(request, 2)
    assert request.num_cached_tokens == 0


def test_partly_filled_blocks_and_other_salts_are_not_kept_for_others() -> None:
    bench = Bench(num_blocks=4, tier_blocks=20)
    bench.add(make_request("a", range(10), max_tokens=1, salt="tenant"))
    bench.run()
    run(bench, "b", range(100, 114))
    saves = [save for step in bench.steps for save in step.saves]
    assert {save.token_ids for save in saves} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert run(bench, "c", range(10)) == 0


class Everything:
    """A tier that says it has whatever it is asked for."""

    def num_found(self, keys: Sequence[BlockKey]) -> int:
        return len(keys)


def test_a_match_names_what_is_to_be_loaded_and_nothing_twice() -> None:
    tables = make_tables(8, tier=Everything())  # type: ignore[arg-type]
    request = make_request("r", range(18))
    match = tables.match(request)
    assert match == Match(16, (), None, tuple(key.hash for key in request.block_keys))
    assert match.whole_blocks(4) == match
    reservation = tables.reserve(request, 18, match)
    assert reservation is not None
    assert [load.hash for load in reservation.loads] == list(match.hashes)
    assert [load.block_id for load in reservation.loads] == list(reservation.block_ids[:4])
    assert [end for end, _ in tables.pending_keys(request, match)] == [4, 8, 12, 16, 18]
