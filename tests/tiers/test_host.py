"""Blocks in memory besides the pool."""

from looseleaf.core.hashing import BlockHasher, BlockKey
from looseleaf.core.step import BlockSave
from looseleaf.tiers.host import HostStore


def keys(*blocks: tuple[int, ...]) -> list[BlockKey]:
    hasher = BlockHasher(2, b"secret")
    chain = [hasher.root(())]
    for tokens in blocks:
        chain.append(hasher.child(chain[-1], tokens))
    return chain[1:]


def save_of(key: BlockKey) -> BlockSave:
    assert key.parent is not None
    return BlockSave(0, key.hash, key.parent.hash, key.token_ids)  # type: ignore[arg-type]


def test_who_was_not_asked_for_longest_leaves_first() -> None:
    store = HostStore(30)
    a, b, c, d = keys((1, 2), (3, 4), (5, 6), (7, 8))
    for key in (a, b, c):
        assert store.put(save_of(key), key.hash[:10]) == []
    assert store.get(a.hash) == a.hash[:10]
    assert store.put(save_of(d), bytes(10)) == [(save_of(b), b.hash[:10])]
    assert [store.has(key) for key in (a, b, c, d)] == [True, False, True, True]
    assert store.num_bytes == 30
    assert store.get(b.hash) is None


def test_what_is_larger_than_everything_is_passed_on() -> None:
    store = HostStore(5)
    (a,) = keys((1, 2))
    assert store.put(save_of(a), bytes(6)) == [(save_of(a), bytes(6))]
    assert len(store) == store.num_bytes == 0


def test_the_same_block_again_takes_no_more_room() -> None:
    store = HostStore(20)
    (a,) = keys((1, 2))
    store.put(save_of(a), bytes(10))
    assert store.put(save_of(a), bytes(10)) == []
    assert (len(store), store.num_bytes) == (1, 10)
    assert store.take_all() == [(save_of(a), bytes(10))]
    assert (len(store), store.num_bytes) == (0, 0)


def test_equal_hashes_are_not_believed() -> None:
    store = HostStore(20)
    a, b = keys((1, 2), (3, 4))
    store.put(save_of(b), bytes(10))
    assert store.has(b)
    assert not store.has(BlockKey(b.hash, b.parent, (3, 5)))
    assert not store.has(BlockKey(b.hash, a.parent, (3, 4)))
    assert not store.has(BlockKey(b.hash, None, (3, 4)))
