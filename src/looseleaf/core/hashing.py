"""Names for the contents of blocks: chained 256-bit hashes, with what is needed to verify a hit.

A block's KV depends on every token before it, so its hash covers its parent's. A chain starts from
a root that covers a secret and the extra keys (cache salt, adapter), so chains of different
tenants never meet and nobody outside can predict a hash.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ExtraKeys = tuple[tuple[str, str], ...]
"""Tagged things besides tokens that the KV depends on, such as `("cache_salt", "tenant-a")`."""

Hasher = Callable[[bytes, Sequence[int]], bytes]
"""(parent's hash, token ids) -> the block's hash. The planner injects the hashes of a trace."""


@dataclass(slots=True, eq=False)
class BlockKey:
    """What a block holds: `token_ids`, after all that `parent` names. A root has no tokens."""

    hash: bytes
    parent: "BlockKey | None" = field(repr=False)
    token_ids: tuple[int, ...]
    extra: ExtraKeys = ()


def same_content(a: BlockKey, b: BlockKey) -> bool:
    """Whether two keys name the same tokens in the same context, all the way to the root.

    Chains that were matched before share their key objects, so this rarely walks far.
    """
    x: BlockKey | None = a
    y: BlockKey | None = b
    while x is not y:
        if x is None or y is None or x.token_ids != y.token_ids or x.extra != y.extra:
            return False
        x, y = x.parent, y.parent
    return True


def sha256_hasher(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """SHA-256 over the parent's hash and the token ids as 64-bit integers."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def root_key(secret: bytes, extra: ExtraKeys) -> BlockKey:
    """The start of a chain. Lengths are hashed too, so no two lists of extra keys look alike."""
    digest = hashlib.sha256(secret)
    for pair in extra:
        for text in pair:
            data = text.encode(errors="surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return BlockKey(digest.digest(), None, (), extra)


class BlockHasher:
    """Names the blocks of sequences for one pool."""

    def __init__(self, block_size: int, secret: bytes, hasher: Hasher = sha256_hasher) -> None:
        self.block_size = block_size
        self._secret = secret
        self._hasher = hasher
        self._common_root = root_key(secret, ())

    def root(self, extra: ExtraKeys) -> BlockKey:
        """The start of a chain; without extra keys always the same object."""
        return root_key(self._secret, extra) if extra else self._common_root

    def child(self, parent: BlockKey, token_ids: Sequence[int]) -> BlockKey:
        """The key of a block, full or partial, that follows `parent`."""
        tokens = tuple(token_ids)
        return BlockKey(self._hasher(parent.hash, tokens), parent, tokens)

    def extend(self, root: BlockKey, keys: list[BlockKey], token_ids: Sequence[int]) -> None:
        """Append to `keys` what is missing for all full blocks of `token_ids`."""
        size = self.block_size
        for start in range(len(keys) * size, len(token_ids) - size + 1, size):
            parent = keys[-1] if keys else root
            keys.append(self.child(parent, token_ids[start : start + size]))
