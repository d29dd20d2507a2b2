import pytest

from looseleaf.core.block_pool import BlockPool
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockHasher, BlockKey

hasher = BlockHasher(2, b"secret")
ROOT = hasher.root(())


def key(*token_ids: int, parent: BlockKey = ROOT) -> BlockKey:
    return hasher.child(parent, token_ids)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_unreferenced == 3
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(1) is None


def test_releasing_too_often_is_a_bug_and_says_so() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.release([BlockId(0)])
    with pytest.raises(RuntimeError, match="block 0"):
        pool.release([BlockId(0)])


def test_free_blocks_are_reused_before_findable_ones_and_the_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    assert blocks is not None
    pool.publish(blocks[0], key(1, 2))
    pool.publish(blocks[1], key(3, 4))
    pool.release([blocks[1], blocks[2], blocks[0], blocks[3]])
    assert (pool.num_free, pool.num_evictable) == (2, 2)
    assert pool.allocate(3) == [blocks[3], blocks[2], blocks[1]]
    assert pool.find(key(1, 2)) is pool.block(blocks[0])
    assert pool.find(key(3, 4)) is None


def test_a_shared_block_leaves_the_free_queue_and_stays_findable() -> None:
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1) or ()
    pool.publish(block_id, key(1, 2))
    pool.release([block_id])
    pool.share(block_id)
    assert (pool.ref_count(block_id), pool.num_evictable) == (1, 0)
    assert pool.allocate(2) is None
    assert pool.find(key(1, 2)) is not None


def test_eviction_forgets_key_and_hash_in_one_step() -> None:
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1) or ()
    pool.publish(block_id, key(1, 2))
    pool.release([block_id])
    assert pool.allocate(1) == [block_id]
    assert pool.find(key(1, 2)) is None
    assert pool.block(block_id).key is None
    assert pool.num_published == 0
    assert pool.children_of(ROOT) == []


def test_a_second_copy_stays_unpublished_while_the_first_is_in_use() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2) or ()
    assert pool.publish(first, key(1, 2))
    assert not pool.publish(second, key(1, 2))
    assert pool.find(key(1, 2)) is pool.block(first)
    pool.release([first])
    assert pool.publish(second, key(1, 2))
    assert pool.find(key(1, 2)) is pool.block(second)
    assert (pool.num_published, pool.num_free, pool.num_evictable) == (1, 1, 0)


def test_a_growing_block_is_found_under_the_longest_of_its_contents() -> None:
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1) or ()
    pool.publish(block_id, key(1))
    assert pool.publish(block_id, key(1, 2))
    assert pool.find(key(1)) is None
    assert not pool.publish(block_id, key(1))
    assert pool.find(key(1, 2)) is not None
    assert pool.num_published == 1


def test_writing_into_published_content_unpublishes_it() -> None:
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1) or ()
    pool.publish(block_id, key(1, 2))
    assert pool.own(block_id, 2)
    assert pool.find(key(1, 2)) is not None
    assert pool.own(block_id, 1)
    assert pool.find(key(1, 2)) is None
    pool.share(block_id)
    assert not pool.own(block_id, 2)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((5, 6, 7, 0), ((5, 6, 7, 8), 3)),
        ((5, 6), ((5, 6), 2)),
        ((5, 9), ((5, 6), 1)),
        ((5, 6, 7, 9, 1), ((5, 6, 7, 9), 4)),
        ((4,), None),
        ((6, 6), None),
    ],
)
def test_the_longest_common_prefix_is_found_among_all_children(wanted, expected) -> None:
    pool = BlockPool(8)
    children = [(5, 6), (5, 6, 7, 8), (5, 6, 7, 9), (1, 2, 3, 4), (9, 9)]
    blocks = pool.allocate(len(children)) or []
    for block_id, tokens in zip(blocks, children, strict=True):
        pool.publish(block_id, key(*tokens))
    found = pool.find_longest(ROOT, wanted)
    if expected is None:
        assert found is None
    else:
        block, length = found
        assert length == expected[1]
        assert block.key.token_ids[:length] == tuple(wanted[:length])


def test_c009_a_forced_collision_is_a_miss() -> None:
    for width in (0, 1):
        colliding = BlockHasher(
            2, b"s", lambda parent, tokens, width=width: bytes([sum(tokens) % 2])[:width]
        )
        root = colliding.root(())
        pool = BlockPool(4)
        (block_id,) = pool.allocate(1) or ()
        mine = colliding.child(root, (1, 2))
        other = colliding.child(root, (3, 4))
        assert mine.hash == other.hash
        pool.publish(block_id, mine)
        assert pool.find(colliding.child(root, (1, 2))) is pool.block(block_id)
        assert pool.find(other) is None
        # Equal tokens after a different beginning of the same hash are a miss too.
        assert pool.find(colliding.child(other, (1, 2))) is None


def test_forget_all_empties_the_index_and_keeps_what_is_in_use() -> None:
    pool = BlockPool(3)
    held, idle, _ = pool.allocate(3) or ()
    pool.publish(held, key(1, 2))
    pool.publish(idle, key(3, 4))
    pool.release([idle])
    pool.forget_all()
    assert pool.num_published == pool.num_evictable == 0
    assert pool.ref_count(held) == 1
    assert pool.num_free == 1
