"""Blocks whose content follows from their number, so that a wrong one is noticed."""

import hashlib

from looseleaf.core.hashing import BlockHasher, BlockKey
from looseleaf.core.step import BlockSave

BLOCK_BYTES = 40_000
_HASHER = BlockHasher(2, b"secret")


def key_of(number: int) -> BlockKey:
    return _HASHER.child(_HASHER.root(()), (number, number + 1))


def save_of(number: int) -> BlockSave:
    key = key_of(number)
    assert key.parent is not None
    return BlockSave(0, key.hash, key.parent.hash, key.token_ids)  # type: ignore[arg-type]


def data_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * (BLOCK_BYTES // 32)
