"""How the KV cache holds numbers, under the names that users give."""

KV_NUMBER_BYTES = {"f32": 4, "f16": 2, "int16": 2, "int8": 1}

INTEGERS = ("int16", "int8")

INTEGER_STEP = 8
"""Integers need a block size and a head_dim that are multiples of this."""


def scale_bytes(dtype: str) -> int:
    """What every token and head has besides its numbers."""
    return 4 if dtype in INTEGERS else 0


def kv_row_bytes(dtype: str, head_dim: int) -> int:
    """Of one token's keys, or of its values, in one head."""
    return head_dim * KV_NUMBER_BYTES[dtype] + scale_bytes(dtype)
