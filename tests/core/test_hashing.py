import pytest

from looseleaf.core.hashing import BlockHasher, root_key, same_content


def chain(hasher: BlockHasher, token_ids: list[int], extra: tuple[tuple[str, str], ...] = ()):
    keys = []
    hasher.extend(hasher.root(extra), keys, token_ids)
    return keys


def test_only_full_blocks_have_keys_and_each_is_hashed_once() -> None:
    hashed = []

    def counting(parent: bytes, token_ids: tuple[int, ...]) -> bytes:
        hashed.append(tuple(token_ids))
        return bytes(31) + bytes([len(hashed)])

    hasher = BlockHasher(4, b"s", counting)
    root, keys = hasher.root(()), []
    for length in range(13):
        hasher.extend(root, keys, list(range(length)))
        assert len(keys) == length // 4
    assert hashed == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]


def test_a_hash_covers_everything_before_it() -> None:
    hasher = BlockHasher(2, b"s")
    a, b = chain(hasher, [1, 2, 3, 4]), chain(hasher, [9, 2, 3, 4])
    assert a[1].token_ids == b[1].token_ids
    assert a[1].hash != b[1].hash
    assert len(a[0].hash) == 32


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((), (("cache_salt", "a"),)),
        ((("cache_salt", "a"),), (("cache_salt", "b"),)),
        ((("cache_salt", "a"),), (("adapter", "a"),)),
        ((("cache_salt", "ab"), ("adapter", "c")), (("cache_salt", "a"), ("adapter", "bc"))),
        ((("cache_salt", "a"),), (("cache_salt", "a"), ("adapter", ""))),
    ],
)
def test_extra_keys_lead_to_other_chains(one, other) -> None:
    hasher = BlockHasher(2, b"s")
    a, b = chain(hasher, [1, 2], one)[0], chain(hasher, [1, 2], other)[0]
    assert a.hash != b.hash
    assert not same_content(a, b)


def test_equal_content_is_recognised_across_objects() -> None:
    hasher = BlockHasher(2, b"s")
    extra = (("cache_salt", "t"),)
    a, b = chain(hasher, [1, 2, 3, 4], extra), chain(hasher, [1, 2, 3, 4], extra)
    assert a[1] is not b[1]
    assert same_content(a[1], b[1])
    assert not same_content(a[1], b[0])


def test_c011_hashes_of_two_processes_differ() -> None:
    assert root_key(b"one secret", ()).hash != root_key(b"another", ()).hash
    one, other = chain(BlockHasher(2, b"x"), [1, 2]), chain(BlockHasher(2, b"y"), [1, 2])
    assert one[0].hash != other[0].hash
