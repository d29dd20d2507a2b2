import pytest
from bookkeeping import make_request
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.core.config import CacheConfig
from looseleaf.core.errors import ConfigError
from looseleaf.engine.contiguous import BuddyAllocator, ContiguousTables, next_power_of_two


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)])
def test_next_power_of_two(n: int, expected: int) -> None:
    assert next_power_of_two(n) == expected


@given(st.integers(1, 70), st.lists(st.integers(1, 40), max_size=40), st.randoms())
def test_regions_never_overlap_and_everything_comes_back(num_blocks, sizes, rng) -> None:
    buddy = BuddyAllocator(num_blocks)
    regions: dict[int, int] = {}
    for size in sizes:
        start = buddy.allocate(size)
        if start is None:
            rounded = next_power_of_two(size)
            whole = [n for n in range(7) if num_blocks >> n & 1 and 1 << n >= rounded]
            assert regions or not whole, "an empty pool serves whatever fits its largest part"
        else:
            assert buddy.size(start) == next_power_of_two(size)
            regions[start] = buddy.size(start)
        taken = [b for s, n in regions.items() for b in range(s, s + n)]
        assert len(taken) == len(set(taken))
        assert all(0 <= b < num_blocks for b in taken)
        assert buddy.num_free == num_blocks - len(taken)
        if regions and rng.random() < 0.5:
            start = rng.choice(sorted(regions))
            buddy.free(start)
            del regions[start]
    for start in list(regions):
        buddy.free(start)
    assert buddy.num_free == num_blocks
    assert buddy.allocate(1 << (num_blocks.bit_length() - 1)) is not None


def test_fragmentation_is_external() -> None:
    buddy = BuddyAllocator(8)
    starts = [buddy.allocate(2) for _ in range(4)]
    buddy.free(starts[0])
    buddy.free(starts[2])
    assert buddy.num_free == 4
    assert buddy.allocate(4) is None


@pytest.mark.parametrize(
    ("rule", "tokens", "blocks"), [("max", 64, 16), ("pow2", 10 + 32, 11), ("oracle", 10 + 20, 8)]
)
def test_the_three_rules(rule: str, tokens: int, blocks: int) -> None:
    tables = ContiguousTables(CacheConfig(32, 4), rule, 64)
    request = make_request("a", 10, max_tokens=20)
    request.max_total_tokens = 30
    assert tables.reserved_tokens(request) == tokens
    assert tables.reserve(request, 10) is not None
    table = tables.table(request.request_id)
    assert len(table) == blocks
    assert list(table) == list(range(table[0], table[0] + blocks))


def test_orca_max_batches_seven_sequences_in_the_papers_pool() -> None:
    """Kwon et al., table 1 and figure 13: 15,728 slots, 2,048 reserved for each: 7."""
    tables = ContiguousTables(CacheConfig(15_728 // 16, 16), "max", 2048)
    admitted = 0
    while True:
        request = make_request(f"r{admitted}", 100)
        request.max_total_tokens = 104
        if tables.reserve(request, 100) is None:
            break
        admitted += 1
    assert admitted == 7


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'median'.*max"):
        ContiguousTables(CacheConfig(32, 4), "median", 64)
