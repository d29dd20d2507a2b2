"""What paging is not: the same bytes are stored, and the same bytes are read."""

import itertools

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.config import CacheConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.lessons.scene import (
    Bar,
    Control,
    Lesson,
    Question,
    Rows,
    Scene,
    Step,
    Value,
)
from looseleaf.studio.lessons.stage import SECRET

LAYERS, KV_HEADS, HEAD_DIM, ELEMENT_BYTES = 32, 8, 128, 2
"""Llama-3-8B with 16-bit keys and values."""

TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * ELEMENT_BYTES
ENTRY_BYTES = 4
"""Of a block table, as kernels read it."""

PAGE = 16
MAX_MODEL_LEN = 4096
POOL_TOKENS = 8 * MAX_MODEL_LEN
LENGTHS = (100, 500, 1000, 2000, 4000)

_PARAMS = SamplingParams(max_tokens=1)


def _fits(tables: KVAllocator, num_tokens: int) -> int:
    """How many sequences that store `num_tokens` hold their memory side by side."""
    for count in itertools.count():
        request = Request(RequestId(f"s{count}"), range(num_tokens), _PARAMS)
        if tables.reserve(request, num_tokens) is None:
            return count
    raise AssertionError("unreachable")


def _build(num_tokens: Value) -> Scene:
    assert isinstance(num_tokens, int)
    entries = blocks_for(num_tokens, PAGE)
    cache = CacheConfig(POOL_TOKENS // PAGE, PAGE)
    paged = _fits(BlockTables(cache, BlockHasher(PAGE, SECRET)), num_tokens)
    contiguous = _fits(ContiguousTables(cache, "max", MAX_MODEL_LEN), num_tokens)
    num_bytes = num_tokens * TOKEN_BYTES
    table_bytes = entries * ENTRY_BYTES
    rounded = entries * PAGE * TOKEN_BYTES
    bars = (
        Bar("exact_size", (("stored", num_bytes),)),
        Bar("paged", (("stored", num_bytes), ("internal", rounded - num_bytes)), True),
        Bar(
            "max",
            (
                ("stored", num_bytes),
                ("internal", MAX_MODEL_LEN * TOKEN_BYTES - num_bytes),
            ),
        ),
    )
    rows = Rows(
        ("allocator", "read_bytes", "lookups", "sequences_fit"),
        (("max", num_bytes, 0, contiguous), ("paged", num_bytes, entries, paged)),
    )
    return Scene(
        (num_tokens,),
        {
            "tokens": num_tokens,
            "token_bytes": TOKEN_BYTES,
            "layers": LAYERS,
            "kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "element_bytes": ELEMENT_BYTES,
            "block_size": PAGE,
            "bytes": num_bytes,
            "rounded": rounded,
            "entries": entries,
            "table_bytes": table_bytes,
            "table_share": table_bytes / num_bytes,
            "paged_fit": paged,
            "max_fit": contiguous,
            "max_model_len": MAX_MODEL_LEN,
            "pool": POOL_TOKENS,
        },
        (
            Step("bytes", bars=bars[:2], unit="bytes"),
            Step("read", rows=rows),
            Step("lookup", rows=rows),
            Step("fit", bars=bars, unit="bytes", rows=rows),
        ),
        Question(0),
    )


NOT_PAGING = Lesson("not_paging", (Control("tokens", LENGTHS, 1000),), _build)
