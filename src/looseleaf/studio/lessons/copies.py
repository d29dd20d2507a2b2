"""Copy on write where one prompt has several continuations: samples, and beams."""

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from looseleaf.core.block_tables import BlockTables
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.usage import Usage
from looseleaf.studio.lessons.scene import (
    Control,
    Holder,
    Lesson,
    Pool,
    Question,
    Rows,
    Scene,
    Step,
    Value,
    ordered,
)
from looseleaf.studio.lessons.stage import Stage

NUM_BLOCKS, BLOCK_SIZE = 32, 4
PROMPT, OUTPUT = 10, 8
NUMBERS = (2, 3, 4, 6, 8)
LATER = 6
"""Steps after the prompt's."""


@dataclass
class _Beams:
    """The moment of a beam search that holds most."""

    usage: Usage
    pool: Pool
    num_copies: int


def _copies(stage: Stage) -> int:
    assert isinstance(stage.allocator, BlockTables)
    return stage.allocator.num_copies


def _renamed(pool: Pool) -> Pool:
    """Beams by their places: each step's are new sequences."""
    names = (f"b{i}" for i in range(1, len(pool.sequences) + 1))
    holders = zip(names, pool.sequences, strict=True)
    sequences = tuple(Holder(name, held.stored, held.table) for name, held in holders)
    return msgspec.structs.replace(pool, sequences=sequences)


def _beams(width: int) -> _Beams:
    stage = Stage(NUM_BLOCKS, BLOCK_SIZE)
    search = BeamSearch(
        stage.engine,
        "beam",
        range(PROMPT),
        BeamSearchParams(beam_width=width, max_tokens=OUTPUT, ignore_eos=True),
        frozenset(),
        tokenizer=cast(Any, None),  # is read for stop strings only
    )
    search.start()
    for _ in range(LATER + 1):
        updates = stage.step()
        usage, pool = stage.usage(), stage.pool()
        search.update(updates)
    return _Beams(usage, _renamed(pool), _copies(stage))


def _build(n: Value) -> Scene:
    assert isinstance(n, int)
    stage = Stage(NUM_BLOCKS, BLOCK_SIZE)
    stage.add("s", range(PROMPT), OUTPUT, n)
    stage.step()
    shared, shared_pool = stage.usage(), stage.pool()
    stage.step()
    written, written_pool = stage.usage(), stage.pool()
    num_copies = _copies(stage)
    for _ in range(LATER - 1):
        stage.step()
    later, later_pool = stage.usage(), stage.pool()
    beams = _beams(n)
    full, partial = divmod(PROMPT, BLOCK_SIZE)
    rows = Rows(
        ("kind", "without", "with", "saved_share", "copies"),
        tuple(
            (
                kind,
                now.blocks_allocated + now.blocks_saved,
                now.blocks_allocated,
                now.sharing,
                count,
            )
            for kind, now, count in (
                ("samples", later, _copies(stage)),
                ("beams", beams.usage, beams.num_copies),
            )
        ),
    )
    prompt_blocks = shared.blocks_allocated
    choices, answer = ordered(num_copies, (n, 0, prompt_blocks * (n - 1)))
    return Scene(
        (n,),
        {
            "n": n,
            "prompt": PROMPT,
            "block_size": BLOCK_SIZE,
            "prompt_blocks": prompt_blocks,
            "full": full,
            "partial": partial,
            "copies": num_copies,
        },
        (
            Step("prompt", {"saved": shared.blocks_saved}, shared_pool),
            Step("write", {"blocks": written.blocks_allocated}, written_pool),
            Step(
                "later",
                {
                    "steps": LATER,
                    "blocks": later.blocks_allocated,
                    "without": later.blocks_allocated + later.blocks_saved,
                },
                later_pool,
            ),
            Step(
                "beams",
                {"blocks": beams.usage.blocks_allocated, "beam_copies": beams.num_copies},
                beams.pool,
            ),
            Step(
                "compare",
                {"sample_share": later.sharing, "beam_share": beams.usage.sharing},
                rows=rows,
            ),
        ),
        Question(answer, {f"choice{i}": choice for i, choice in enumerate(choices)}),
    )


COPIES = Lesson("copies", (Control("n", NUMBERS, 4),), _build)
