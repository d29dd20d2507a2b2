import pytest
from bookkeeping import Bench, make_request

from looseleaf.engine.usage import usage


def test_paged_slots_by_what_becomes_of_them() -> None:
    bench = Bench(num_blocks=8, block_size=4)
    bench.add(make_request("a", 5, max_tokens=2))
    bench.step()
    now = usage(bench.tables, bench.scheduler.running)
    # 5 tokens stored in 2 blocks; one more will be, the newest of the 7 never is.
    assert (now.stored, now.reserved, now.internal, now.external) == (5, 1, 2, 0)
    assert now.allocated == 8
    assert (now.physical, now.pool, now.effective) == (5 / 8, 5 / 32, 5 / 8)
    assert now.waste == 2 / 8


def test_sharing_is_counted_once_in_memory_and_for_each_in_length() -> None:
    bench = Bench(num_blocks=32, block_size=4)
    bench.add(make_request("a", 8, max_tokens=2, n=4))
    bench.step()
    now = usage(bench.tables, bench.scheduler.running)
    assert (now.blocks_allocated, now.blocks_saved) == (2, 6)
    assert now.sharing == 6 / 8
    assert (now.stored, now.sequence_tokens) == (8, 32)
    assert now.effective == 4.0


@pytest.mark.parametrize(
    ("rule", "reserved", "internal", "external"),
    [
        # 5 tokens are stored, 19 will be; regions of 64, 5 + 16 and 20 tokens, rounded up to a
        # power of two of blocks by the buddy allocator.
        ("max", 14, 64 - 19, 0),
        ("pow2", 14, 24 - 19, 32 - 24),
        ("oracle", 14, 20 - 19, 32 - 20),
    ],
)
def test_reserved_slots_are_split_as_in_the_paper(rule, reserved, internal, external) -> None:
    bench = Bench(num_blocks=32, block_size=4, max_model_len=64, allocator=rule)
    bench.add(make_request("a", 5, max_tokens=15))
    bench.step()
    now = usage(bench.tables, bench.scheduler.running)
    assert (now.stored, now.reserved, now.internal, now.external) == (
        5,
        reserved,
        internal,
        external,
    )


def test_an_empty_pool_wastes_nothing() -> None:
    now = usage(Bench().tables, [])
    assert (now.allocated, now.waste, now.physical, now.pool, now.sharing) == (0, 0, 0, 0, 0)
