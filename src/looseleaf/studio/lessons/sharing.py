"""The sharing walk-through of `looseleaf demo`, picture by picture."""

from collections.abc import Sequence

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.request import Request
from looseleaf.core.step import BlockCopy
from looseleaf.demo import sharing
from looseleaf.studio.lessons.scene import (
    Control,
    Figure,
    Lesson,
    Pool,
    Question,
    Rows,
    Scene,
    Step,
    Value,
    ordered,
)
from looseleaf.studio.lessons.stage import pool_of

NUM_SHARED = (4, 8, 9, 10, 11)


def _build(num_shared: Value) -> Scene:
    assert isinstance(num_shared, int)
    pools: dict[str, Pool] = {}

    def watch(
        what: str, tables: BlockTables, live: dict[str, Request], copies: Sequence[BlockCopy]
    ) -> None:
        pools[what] = pool_of(tables, live.values(), copies)

    result = sharing.walk_through(num_shared, watch)
    lengths, tables = result["lengths"], result["tables"]
    in_use = result["in_use_after_free"]
    refs: list[int] = result["ref_counts"]
    figures: dict[str, Figure] = {
        "pool": sharing.NUM_BLOCKS,
        "block_size": result["block_size"],
        "shared": num_shared,
        **{f"{name}_tokens": lengths[name] for name in lengths},
        **{f"{name}_table": tuple(tables[name]) for name in tables},
        **{f"{name}_own": lengths[name] - lengths["sys"] for name in "AB"},
        "refs": tuple(refs),
        "copies": result["copies"],
        "without": result["blocks_without_sharing"],
        "without_sys": result["blocks_without_sharing_or_sys"],
        "used": result["blocks_used"],
        **{f"after{i}": number for i, number in enumerate(in_use, start=1)},
    }
    rows = Rows(
        ("sequence", "tokens", "table", "alone"),
        tuple(
            (
                name,
                lengths[name],
                ", ".join(map(str, tables[name])),
                -(-lengths[name] // sharing.BLOCK_SIZE),
            )
            for name in lengths
        ),
    )

    def refs_in(what: str, block: int) -> int:
        return next(b.ref_count for b in pools[what].blocks if b.block_id == block)

    freed = result["blocks_used"] - in_use[0]
    choices, answer = ordered(freed, (len(tables["sys"]), result["blocks_used"], 1))
    steps = (
        Step("sys", {"blocks": len(tables["sys"])}, pools["sys writes"]),
        Step("fork", {"refs0": refs_in("A forks", 0)}, pools["A forks"]),
        Step("own", {"refs0": refs_in("A writes", 0)}, pools["A writes"]),
        Step("second", {"refs0": refs_in("B writes", 0)}, pools["B writes"]),
        Step("third", {"refs0": refs_in("C forks", 0)}, pools["C forks"]),
        Step("copy" if result["copies"] else "no_copy", pool=pools["C writes"]),
        Step("count", pool=pools["C writes"], rows=rows),
        Step("first_end", {"refs0": refs_in("sys ends", 0)}, pools["sys ends"]),
        Step("all_end", pool=pools["C ends"]),
    )
    return Scene(
        (num_shared,),
        figures,
        steps,
        Question(
            answer,
            {
                **{f"choice{i}": choice for i, choice in enumerate(choices)},
                "right": freed,
                "before": refs[0],
                "after": refs_in("sys ends", 0),
            },
        ),
    )


SHARING = Lesson("sharing", (Control("shared", NUM_SHARED, sharing.SHARED),), _build)
