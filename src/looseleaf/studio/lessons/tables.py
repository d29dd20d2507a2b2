"""Blocks, the block table, and how a position becomes an address."""

from looseleaf.core.block_tables import BlockTables, blocks_for
from looseleaf.core.config import CacheConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.demo.sharing import append
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.lessons.scene import (
    Control,
    Lesson,
    Question,
    Scene,
    Step,
    Strip,
    Value,
    ordered,
)
from looseleaf.studio.lessons.stage import SECRET, pool_of

NUM_SLOTS = 64
NUM_TOKENS = 14
OTHERS = (("B", 8, 3), ("C", 6, 7), ("D", 10, 4))
"""Others that take blocks in between: how many tokens, and after how many more of A's. B ends when
C has come, and leaves its blocks to whoever is next."""

_PARAMS = SamplingParams(max_tokens=1)


def _request(name: str, num_tokens: int) -> Request:
    return Request(RequestId(name), range(num_tokens), _PARAMS)


def _scattered(block_size: int) -> tuple[BlockTables, Request, list[Request]]:
    """A pool in which A has its tokens, some at a time, while others came and went."""
    cache = CacheConfig(NUM_SLOTS // block_size, block_size, enable_prefix_caching=False)
    tables = BlockTables(cache, BlockHasher(block_size, SECRET))
    first = _request("A", NUM_SLOTS)
    live = [first]
    for name, num_tokens, num_ours in OTHERS:
        other = _request(name, num_tokens)
        append(tables, other, num_tokens)
        if name == "C":
            tables.free(live.pop())
        append(tables, first, num_ours)
        live.append(other)
    return tables, first, live


def _build(position: Value, block_size: Value) -> Scene:
    assert isinstance(position, int)
    assert isinstance(block_size, int)
    tables, request, live = _scattered(block_size)
    table = tables.table(request.request_id)
    index, offset = divmod(position, block_size)
    block = table[index]
    strip = Strip("A", "s" * NUM_TOKENS, block_size)
    here = Strip("A", "s" * NUM_TOKENS, block_size, position)
    before = pool_of(tables, live)
    marked = pool_of(tables, live, mark=(block, offset))
    asked = (position + 5) % NUM_TOKENS
    i, j = divmod(asked, block_size)
    slot = table[i] * block_size + j
    wrong = (i * block_size + j, slot + block_size, slot + 1, slot + 2 * block_size)
    choices, answer = ordered(slot, wrong)

    next_position = len(table) * block_size
    append(tables, request, next_position + 1 - NUM_TOKENS)
    grown = tables.table(request.request_id)
    after = pool_of(tables, live, mark=(grown[-1], 0))
    return Scene(
        (position, block_size),
        {
            "tokens": NUM_TOKENS,
            "block_size": block_size,
            "blocks": blocks_for(NUM_TOKENS, block_size),
            "position": position,
            "index": index,
            "offset": offset,
            "block": block,
            "slot": block * block_size + offset,
            "table": table,
        },
        (
            Step("cut", strips=(strip,)),
            Step("scatter", pool=before, strips=(strip,)),
            Step("index", pool=marked, strips=(here,)),
            Step("offset", pool=marked, strips=(here,)),
            Step("grow", {"next": next_position, "new": grown[-1], "grown": grown}, after),
        ),
        Question(
            answer,
            {
                **{f"choice{k}": choice for k, choice in enumerate(choices)},
                "asked": asked,
                "asked_index": i,
                "asked_offset": j,
                "asked_block": table[i],
                "right": slot,
            },
        ),
    )


TABLES = Lesson(
    "tables",
    (Control("position", tuple(range(NUM_TOKENS)), 9), Control("block_size", (2, 4, 8), 4)),
    _build,
)
