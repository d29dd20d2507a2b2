"""Attention of one sequence's new tokens over its context, the same bits for any chunking.

    positions    0 ......... 127 | 128 ........ 255 | 256 ...      keys, in splits of fixed length
    queries      | 0 .. 7 | 8 .. 15 | ...                          in tiles at fixed positions

Within a split everything is computed at once: scores, their maximum, the weighted values. Splits
are then merged in order. So the arithmetic for a query follows from its position alone; a split
that lies entirely after it counts as zeros. Dao et al., 2022; the merging is flash-decoding's.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SPLIT = 128
TILE = 8
_LOWEST = np.float32(-1e30)  # finite, so that what is hidden weighs 0 and never NaN


def attend(
    queries: Floats,
    keys: Floats,
    values: Floats,
    first_position: int,
    scale: float,
    window: int | None,
) -> Floats:
    """Rows (n, heads * head_dim) for queries of that shape at `first_position` and after.

    `keys` and `values` (first_position + n, kv_heads, head_dim) are those of all positions from 0.
    A query sees positions up to its own, the last `window` of them if that is set.
    """
    num_queries, num_kv_heads, head_dim = len(queries), *keys.shape[1:]
    context = len(keys)
    num_splits = -(-context // SPLIT)
    # (splits, kv_heads, head_dim, SPLIT) and (splits, kv_heads, SPLIT, head_dim)
    k = _padded(keys, 0, num_splits * SPLIT).reshape(num_splits, SPLIT, num_kv_heads, head_dim)
    v = _padded(values, 0, num_splits * SPLIT).reshape(k.shape)
    k = np.ascontiguousarray(k.transpose(0, 2, 3, 1))
    v = np.ascontiguousarray(v.transpose(0, 2, 1, 3))
    first_tile, last_tile = first_position // TILE, (context - 1) // TILE
    skipped = first_position - first_tile * TILE
    num_tiles = last_tile - first_tile + 1
    # (tiles, kv_heads, group * TILE, head_dim): the heads that share a KV head, one below the other
    q = _padded(queries, skipped, num_tiles * TILE)
    q = q.reshape(num_tiles, TILE, num_kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4)
    group = q.shape[2]
    q = np.ascontiguousarray(q).reshape(num_tiles, num_kv_heads, group * TILE, head_dim)
    result = np.empty_like(q)
    for i in range(num_tiles):
        start = (first_tile + i) * TILE
        needed = -(-min(start + TILE, context) // SPLIT)
        seen = np.tile(_mask(start, needed, window), (1, 1, group, 1))
        result[i] = _tile(q[i], k[:needed], v[:needed], seen, np.float32(scale))
    rows = result.reshape(num_tiles, num_kv_heads, group, TILE, head_dim)
    rows = rows.transpose(0, 3, 1, 2, 4).reshape(num_tiles * TILE, -1)
    return rows[skipped : skipped + num_queries]


def _tile(q: Floats, k: Floats, v: Floats, seen: NDArray[np.bool_], scale: np.float32) -> Floats:
    """One tile of queries (kv_heads, rows, head_dim) over all splits."""
    scores = np.where(seen, np.matmul(q, k) * scale, -np.inf)
    peaks = np.maximum(scores.max(axis=-1, keepdims=True), _LOWEST)
    weights = np.exp(scores - peaks)
    sums = weights.sum(axis=-1, keepdims=True)
    parts = np.matmul(weights, v)
    shares = np.exp(peaks - peaks.max(axis=0))
    total, merged = shares[0] * sums[0], shares[0] * parts[0]
    for share, weight, part in zip(shares[1:], sums[1:], parts[1:], strict=True):
        total += share * weight
        merged += share * part
    result: Floats = merged / total
    return result


def _mask(start: int, num_splits: int, window: int | None) -> NDArray[np.bool_]:
    """Which keys the queries at `start` and after see: (splits, 1, TILE, SPLIT)."""
    query = np.arange(start, start + TILE)[:, None]
    key = np.arange(num_splits * SPLIT).reshape(num_splits, 1, 1, SPLIT)
    seen: NDArray[np.bool_] = key <= query
    return seen if window is None else seen & (key > query - window)


def _padded(rows: Floats, before: int, length: int) -> Floats:
    """`rows` after `before` rows of zeros, filled up with zeros to `length` rows."""
    result = np.zeros((length, *rows.shape[1:]), np.float32)
    result[before : before + len(rows)] = rows
    return result
