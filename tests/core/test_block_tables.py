import pytest
from bookkeeping import make_request, make_tables

from looseleaf.core.allocator import NO_MATCH, Match
from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.request import Request
from looseleaf.core.step import BlockCopy
from looseleaf.demo.sharing import walk_through


def store(tables: BlockTables, request: Request, num_tokens: int) -> list[BlockCopy]:
    """Admit or continue `request` up to `num_tokens` tokens, as a step and its result would."""
    known = bool(tables.table(request.request_id))
    match = NO_MATCH if known else tables.match(request)
    if not known:
        request.num_computed_tokens = match.num_tokens
    reservation = tables.reserve(request, num_tokens, None if known else match)
    assert reservation is not None
    tables.end_schedule()
    request.num_computed_tokens = num_tokens
    tables.publish(request)
    return list(reservation.copies)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_blocks_of_a_sequence(num_tokens: int, expected: int) -> None:
    assert blocks_for(num_tokens, 16) == expected


def test_paper_walk_through_of_a_seven_token_prompt() -> None:
    """Kwon et al., figure 6: block size 4; prefill, then two decode steps."""
    tables = make_tables(9, 4)
    request = make_request("four", range(7), max_tokens=8)
    store(tables, request, 7)
    assert len(tables.table(request.request_id)) == 2
    # The first generated token goes into the last slot of the second block, the next needs a third.
    request.token_ids.append(100)
    store(tables, request, 8)
    assert len(tables.table(request.request_id)) == 2
    request.token_ids.append(101)
    store(tables, request, 9)
    assert len(tables.table(request.request_id)) == 3


def test_paper_walk_through_of_two_diverging_samples() -> None:
    """Kwon et al., figure 8: both samples share the prompt's two blocks; the first to write into
    the half-filled one copies it, the second then writes in place."""
    tables = make_tables(9, 4)
    one = make_request("A1", range(7))
    store(tables, one, 7)
    two = make_request("A2", range(7))
    tables.fork(one, two, 7)
    two.num_computed_tokens = 7
    full, half = tables.table(one.request_id)
    assert [tables.pool.ref_count(b) for b in (full, half)] == [2, 2]

    one.token_ids.append(100)
    (copy,) = store(tables, one, 8)
    assert copy.source == half
    assert tables.table(one.request_id) == (full, copy.destination)
    assert [tables.pool.ref_count(b) for b in (full, half, copy.destination)] == [2, 1, 1]

    two.token_ids.append(200)
    assert store(tables, two, 8) == []
    assert tables.table(two.request_id) == (full, half)


def test_within_one_step_the_last_holder_of_a_block_does_not_copy() -> None:
    tables = make_tables(9, 4)
    one, two = make_request("a", range(6)), make_request("b", range(6))
    store(tables, one, 6)
    tables.fork(one, two, 6)
    two.num_computed_tokens = 6
    first, second = tables.reserve(one, 7), tables.reserve(two, 7)
    assert first is not None
    assert second is not None
    assert len(first.copies) == 1
    assert second.copies == ()


def test_seed_simulation_of_sharing() -> None:
    result = walk_through()
    assert result["tables"] == {
        "sys": [0, 1],
        "A": [0, 1, 2],
        "B": [0, 1, 3],
        "C": [0, 1, 4],
    }
    assert result["ref_counts"] == [4, 4, 1, 1, 1]
    assert result["copies"] == 1
    assert (result["blocks_without_sharing"], result["blocks_used"]) == (11, 5)
    assert result["blocks_without_sharing_or_sys"] == 9
    assert result["in_use_after_free"] == [5, 4, 3, 0]


def test_reserve_is_all_or_nothing() -> None:
    tables = make_tables(3, 4)
    store(tables, make_request("a", 4), 4)
    b = make_request("b", 12)
    assert tables.reserve(b, 12, NO_MATCH) is None
    assert tables.table(b.request_id) == ()
    assert tables.num_available == 2
    assert tables.reserve(b, 8, NO_MATCH, spare=1) is None
    assert tables.reserve(b, 8, NO_MATCH) is not None
    b.num_computed_tokens = 8
    assert tables.reserve(b, 9) is None
    assert len(tables.table(b.request_id)) == 2


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 20])
def test_reuse_is_exact_to_the_token(length: int) -> None:
    """A finished sequence of `length` stored tokens serves any other that begins the same."""
    for common in range(1, length + 1):
        tables = make_tables(16, 4)
        first = make_request("first", range(length))
        store(tables, first, length)
        tables.free(first)
        second = make_request("second", [*range(common), 500, 501])
        match = tables.match(second)
        assert match.num_tokens == common
        assert len(match.block_ids) == common // 4
        assert (match.source is not None) == (common % 4 != 0)
        copies = store(tables, second, common + 2)
        assert len(copies) == (common % 4 != 0)


def test_one_token_is_always_left_to_compute() -> None:
    for length in range(1, 18):
        tables = make_tables(16, 4)
        store(tables, make_request("a", range(length)), length)
        assert tables.match(make_request("b", range(length))).num_tokens == length - 1


def test_the_best_partial_block_is_chosen() -> None:
    tables = make_tables(32, 4)
    for name, tail in {"a": [9, 9, 9], "b": [4, 9, 9], "c": [4, 5, 9], "d": [7, 7, 7]}.items():
        request = make_request(name, [0, 1, 2, 3, *tail, 9])
        store(tables, request, 8)
        tables.free(request)
    match = tables.match(make_request("q", [0, 1, 2, 3, 4, 5, 6, 7]))
    assert match.num_tokens == 6


def test_freed_chains_are_evicted_from_their_tail() -> None:
    tables = make_tables(4, 4)
    first = make_request("first", range(16))
    store(tables, first, 16)
    tables.free(first)
    store(tables, make_request("other", 4), 4)
    assert tables.match(make_request("again", [*range(16), 99])).num_tokens == 12


def test_a_fork_behind_its_parent_does_not_disturb_what_is_published() -> None:
    """The fork writes other tokens where its parent's block is published: whoever is last to hold
    the block may write, but must not be found under the parent's tokens afterwards."""
    tables = make_tables(8, 4)
    parent = make_request("parent", range(8))
    store(tables, parent, 8)
    child = make_request("child", [0, 1, 2, 3, 4, 5, 90, 91])
    tables.fork(parent, child, 6)
    child.num_computed_tokens = 6
    tables.free(parent)
    assert store(tables, child, 7) == []
    probe = make_request("probe", [*range(8), 99])
    assert tables.match(probe).num_tokens == 4
    child.num_computed_tokens = 7
    store(tables, child, 8)
    assert tables.match(make_request("p2", [0, 1, 2, 3, 4, 5, 90, 91, 1])).num_tokens == 8


def test_caching_off_finds_nothing() -> None:
    tables = make_tables(8, 4, prefix_caching=False)
    first = make_request("a", range(8))
    store(tables, first, 8)
    tables.free(first)
    assert tables.match(make_request("b", range(8))) == NO_MATCH
    assert tables.pool.num_published == 0


def test_a_request_scored_for_its_prompt_reads_no_cache_but_fills_it() -> None:
    tables = make_tables(16, 4)
    scored = make_request("a", range(9), prompt_logprobs=True)
    store(tables, scored, 9)
    assert tables.match(make_request("b", range(9), prompt_logprobs=True)) == NO_MATCH
    assert tables.match(make_request("c", range(9))).num_tokens == 8


def test_the_source_of_a_copy_cannot_be_reused_in_the_same_step() -> None:
    tables = make_tables(3, 4)
    old = make_request("old", range(3))
    store(tables, old, 3)
    tables.free(old)
    reader = make_request("reader", [0, 1, 9])
    match = tables.match(reader)
    reader.num_computed_tokens = match.num_tokens
    reservation = tables.reserve(reader, 3, match)
    assert reservation is not None
    (copy,) = reservation.copies
    assert tables.num_available == 1
    tables.end_schedule()
    assert tables.num_available == 2
    assert copy.source not in tables.table(reader.request_id)


def test_a_match_without_its_partial_block() -> None:
    assert Match(6, (1,), 7).whole_blocks(4) == Match(4, (1,))
