"""The lessons: their numbers against the bookkeeping, `looseleaf demo` and sums done by hand.

`python -m pytest tests/studio/test_lessons.py --write-page-data` writes what the page's own tests
read: which figures each of a lesson's texts may name.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bookkeeping import Bench, make_request

from looseleaf.core.errors import LooseleafError
from looseleaf.demo import sharing, waste
from looseleaf.studio.lessons import batching, copies, preemption, reservation
from looseleaf.studio.lessons.registry import (
    LESSONS,
    UnknownLessonError,
    index,
    lesson_payload,
    payload_json,
    scene,
)
from looseleaf.studio.lessons.scene import Pool, Scene, Step, encode

PAGE_DATA = Path(__file__).resolve().parents[2] / "web" / "tests" / "unit" / "lessons.json"


def at(name: str, **settings: Any) -> Scene:
    return scene(name, {control: str(value) for control, value in settings.items()})


def step(scene: Scene, name: str) -> Step:
    return next(found for found in scene.steps if found.name == name)


def pool(scene: Scene, name: str) -> Pool:
    found = step(scene, name).pool
    assert found is not None
    return found


def refs(pool: Pool) -> dict[int, int]:
    return {block.block_id: block.ref_count for block in pool.blocks}


def rows(scene: Scene, name: str) -> dict[Any, dict[str, Any]]:
    table = step(scene, name).rows
    assert table is not None
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.parametrize("name", LESSONS)
def test_every_setting_has_its_scene_and_pictures_count_what_is_there(name: str) -> None:
    payload = lesson_payload(name)
    assert len(payload_json(name)) < 100_000
    seen = set()
    for played in payload.scenes:
        names = [control.name for control in payload.controls]
        assert at(name, **dict(zip(names, played.values, strict=True))) is played
        seen.add(played.values)
        assert 3 <= len(played.steps) <= 9
        for part in played.steps:
            if part.pool is None:
                continue
            held = Counter(b for _, _, table in map(_fields, part.pool.sequences) for b in table)
            assert {b: n for b, n in refs(part.pool).items() if n} == held
            size = part.pool.block_size
            assert all(0 <= b.stored <= b.ever <= size for b in part.pool.blocks)
    assert len(seen) == len(payload.scenes)
    assert at(name).values == tuple(control.default for control in payload.controls)


def _fields(row: Any) -> tuple[str, int, tuple[int, ...]]:
    return row.name, row.stored, row.table


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownLessonError, match="reservation"):
        lesson_payload("paging")
    with pytest.raises(LooseleafError, match="n must be one of 2, 3, 4, 6, 8"):
        at("copies", n=5)
    with pytest.raises(LooseleafError, match="it has position, block_size"):
        at("tables", seed=1)
    listed = json.loads(index())["lessons"]
    assert [lesson["name"] for lesson in listed] == list(LESSONS)


def test_reservation_by_hand() -> None:
    """A has 10 tokens and will store 26. 48 reserved are 12 blocks, in a region of 16; 10 and a
    power of two of 32 are 42, 11 blocks in 16; exactly 27 are 7 blocks in 8."""
    for rule, taken, internal, external in (
        *(("max", 64, 48 - 26, 16), ("pow2", 64, 44 - 26, 20)),
        *(("oracle", 32, 28 - 26, 4), ("paged", 12, 0, 0)),
    ):
        played = at("reservation", allocator=rule)
        figures = step(played, "unknown").figures
        assert figures["allocated"] == taken == 4 * figures["held"]
        assert figures["stored"] == 10
        assert figures["reserved"] == min(taken, 26) - 10 if rule == "paged" else 16
        assert (figures["internal"], figures["external"]) == (internal, external)
        bars = {bar.name: dict(bar.parts) for bar in step(played, "compare").bars}
        assert {sum(parts.values()) for parts in bars.values()} == {32 * 4}
        assert bars["max"]["stored"] < bars["oracle"]["stored"] < bars["paged"]["stored"]
    final = step(at("reservation"), "compare").figures
    assert (final["max"], final["paged"]) == (128 // 64, len(reservation.REQUESTS))


def test_waste_is_the_demos_simulation() -> None:
    figures = at("waste").figures
    run = waste.single_run(1000, 37)
    # What the write-up prints, and what is exact.
    shown = (f"{figures['contiguous']:.1%}", f"{figures['paged']:.1%}")
    assert (*shown, f"{figures['concurrency']:.1f}") == ("84.2%", "1.1%", "6.3")
    assert figures["exact_contiguous"] == pytest.approx(1 - 663.5 / 4096, abs=1e-12)
    assert figures["exact_paged"] == pytest.approx(7.5 / 671, abs=1e-12)
    assert figures["exact_concurrency"] == pytest.approx(4096 / 671, abs=1e-12)
    demo = waste.simulate()
    table = rows(at("waste"), "exact")
    for name in ("contiguous", "power_of_two", "paged"):
        assert table[name]["this_run"] == figures[name] == run[name]
        assert table[name]["mean_of_runs"] == demo[name]
        assert table[name]["spread"] == demo["single_run_sd"][name]
        assert table[name]["exact"] == demo["exact"][name]
    for played in lesson_payload("waste").scenes:
        lengths = sum(size for bar in played.steps[0].bars for _, size in bar.parts)
        assert lengths == played.values[0]


def test_addresses_are_the_block_tables() -> None:
    for played in lesson_payload("tables").scenes:
        position, size = played.values
        assert isinstance(position, int)
        assert isinstance(size, int)
        figures, asked = played.figures, played.question.figures
        holders = {held.name: held.table for held in pool(played, "scatter").sequences}
        table = holders["A"]
        assert figures["table"] == table
        assert figures["slot"] == table[position // size] * size + position % size
        assert pool(played, "index").mark == (table[position // size], position % size)
        assert not set(table) & {b for name in "CD" for b in holders[name]}
        place = int(asked["asked"])
        right = asked[f"choice{played.question.answer}"]
        assert right == table[place // size] * size + place % size
        assert len({asked[f"choice{i}"] for i in range(4)}) == 4
        grown = step(played, "grow").figures
        assert grown["grown"] == (*table, grown["new"])


def test_sharing_is_the_demos_walk_through() -> None:
    demo = sharing.walk_through()
    played = at("sharing")
    figures = played.figures
    assert figures["shared"] == sharing.SHARED
    assert [figures[f"{name}_table"] for name in demo["tables"]] == [
        tuple(table) for table in demo["tables"].values()
    ]
    assert figures["refs"] == tuple(demo["ref_counts"]) == (4, 4, 1, 1, 1)
    assert (figures["without"], figures["without_sys"], figures["used"]) == (11, 9, 5)
    assert (figures["copies"], demo["copies"]) == (1, 1)
    assert [figures[f"after{i}"] for i in range(1, 5)] == demo["in_use_after_free"] == [5, 4, 3, 0]
    assert refs(pool(played, "copy")) == {0: 4, 1: 4, 2: 1, 3: 1, 4: 1}
    assert pool(played, "copy").copies == ((2, 4),)
    assert set(refs(pool(played, "all_end")).values()) == {0}
    assert played.question.figures[f"choice{played.question.answer}"] == 0
    # Whole blocks in common need no copy.
    for shared, copied in ((4, 0), (8, 0), (9, 1), (10, 1), (11, 1)):
        assert at("sharing", shared=shared).figures["copies"] == copied


@pytest.mark.parametrize("n", copies.NUMBERS)
def test_copies_are_one_fewer_than_samples(n: int) -> None:
    bench = Bench(copies.NUM_BLOCKS, copies.BLOCK_SIZE)
    bench.add(make_request("s", range(copies.PROMPT), max_tokens=copies.OUTPUT, n=n))
    bench.step()
    bench.step()
    played = at("copies", n=n)
    assert played.figures["copies"] == bench.tables.num_copies == n - 1
    assert step(played, "write").figures["blocks"] == bench.num_in_use() == 2 + n
    for _ in range(copies.LATER - 1):
        bench.step()
    table = rows(played, "compare")
    assert step(played, "later").figures["blocks"] == bench.num_in_use() == 2 + 2 * n
    assert table["samples"]["without"] == 4 * n
    assert table["samples"]["saved_share"] == pytest.approx(1 - (2 + 2 * n) / (4 * n))
    assert table["beams"]["saved_share"] >= table["samples"]["saved_share"]
    held = [b for b, count in refs(pool(played, "beams")).items() if count]
    assert table["beams"]["with"] == len(held)
    assert played.question.figures[f"choice{played.question.answer}"] == n - 1


@pytest.mark.parametrize("seats", batching.SEATS)
def test_batches_end_when_they_must(seats: int) -> None:
    """A request takes a step for each token. A static batch takes as long as its longest; a free
    seat goes to the next in line."""
    outputs = [output for _, _, output in batching.REQUESTS]
    static = sum(max(outputs[i : i + seats]) for i in range(0, len(outputs), seats))
    free = [0] * seats
    for output in outputs:
        free.sort()
        free[0] += output
    played = at("batching", max_num_seqs=seats)
    assert played.figures["static_steps"] == static
    assert played.figures["steps"] == max(free)
    assert played.figures["gain"] == static / max(free)
    assert played.figures["idle"] == pytest.approx(1 - sum(outputs) / (seats * max(free)))
    assert played.figures["static_idle"] == pytest.approx(1 - sum(outputs) / (seats * static))
    for lane, output in zip(step(played, "continuous").lanes, outputs, strict=True):
        assert sum(cell[:1] in ("p", "d") for cell in lane.cells) == output


@pytest.mark.parametrize("num_blocks", preemption.POOLS)
def test_preemptions_are_the_schedulers(num_blocks: int) -> None:
    bench = Bench(num_blocks, preemption.BLOCK_SIZE)
    for name, prompt, output in preemption.REQUESTS:
        bench.add(make_request(name, prompt, max_tokens=output))
    bench.run()
    counters = bench.scheduler.counters
    figures = at("preemption", num_blocks=num_blocks).figures
    assert figures["preemptions"] == counters.preemptions
    assert figures["steps"] == counters.steps
    assert figures["computed"] == counters.computed_tokens
    assert figures["needed"] == 4 * (6 + 18 - 1)
    assert (figures["again"] == 0) == (counters.preemptions == 0) == (num_blocks == 24)
    lanes = at("preemption", num_blocks=num_blocks).steps[-1].lanes
    assert sum(cell == "x" for lane in lanes for cell in lane.cells) == counters.preemptions


PUBLISHED = {1: 0, 4: 0.23, 8: 0.52, 16: 1.12, 32: 2.28, 64: 4.44, 128: 8.47, 256: 15.6}
"""Percent that is wasted, by block size."""


@pytest.mark.parametrize("size", waste.BLOCK_SIZES)
def test_what_a_block_size_costs(size: int) -> None:
    played = at("block_size", block_size=size)
    figures = played.figures
    assert 100 * float(figures["waste"]) == pytest.approx(PUBLISHED[size], abs=0.05)
    assert figures["waste"] == waste.exact()[f"paged_{size}"]
    # All lengths of a range are as likely, so exactly this where ranges are whole blocks long.
    assert figures["empty"] == pytest.approx((size - 1) / 2, rel=1e-9 if size <= 32 else 0.05)
    assert figures["entries"] == figures["hashes"] == 4096 // size
    assert figures["shared"] == 100 // size * size
    assert figures["copied"] == 100 % size
    shared = [count for count in refs(pool(played, "share")).values() if count == 2]
    assert len(shared) == 100 // size


def test_paging_stores_no_less() -> None:
    """Llama-3-8B at 16 bits takes 131,072 bytes a token; 32,768 tokens are 8 times the longest."""
    for played in lesson_payload("not_paging").scenes:
        (tokens,) = played.values
        assert isinstance(tokens, int)
        figures = played.figures
        assert figures["token_bytes"] == 131_072
        assert figures["bytes"] == 131_072 * tokens
        assert figures["bytes"] <= figures["rounded"] < 131_072 * (tokens + 16)
        assert figures["max_fit"] == 8
        assert figures["paged_fit"] == 32_768 // 16 // -(-tokens // 16)


def test_where_nothing_is_shared() -> None:
    """18 tokens of prompt and up to 3 more stored are 5 blocks each; 12 in common are 3 blocks."""
    table = rows(at("no_sharing"), "compare")
    assert (table["long"]["without"], table["long"]["with"]) == (20, 20 - 3 * 3)
    assert table["long"]["found"] == table["apart"]["found"] == 3 * 12
    for case in ("first", "short", "apart"):
        assert (
            table[case]["without"]
            == table[case]["with"]
            == at("no_sharing", case=case).figures["blocks"]
        )
        assert at("no_sharing", case=case).figures["saved"] == 0
    assert table["first"]["found"] == 0
    assert table["apart"]["at_once"] == 1


def page_data() -> dict[str, Any]:
    data = {}
    for name in LESSONS:
        payload = lesson_payload(name)
        steps: dict[str, set[str]] = {}
        asked = set(payload.scenes[0].figures) | set(payload.scenes[0].question.figures)
        terms = {control.name for control in payload.controls}
        terms |= {v for c in payload.controls for v in c.values if isinstance(v, str)}
        for played in payload.scenes:
            asked &= {*played.figures, *played.question.figures}
            for part in played.steps:
                known = {*played.figures, *part.figures}
                steps[part.name] = steps.get(part.name, known) & known
                terms |= {f"lane_{cell[0]}" for row in part.lanes for cell in row.cells if cell}
                terms |= {part_name for bar in part.bars for part_name, _ in bar.parts}
                terms |= {bar.name for bar in part.bars if not bar.name.isdigit()}
                if part.rows is not None:
                    terms |= set(part.rows.columns)
        data[name] = {
            "scene": json.loads(encode(at(name))),
            "controls": json.loads(encode(payload.controls)),
            "steps": {step: sorted(known) for step, known in steps.items()},
            "asked": sorted(asked),
            "terms": sorted(terms),
            "answers": sorted({played.question.answer for played in payload.scenes}),
        }
    return data


def test_the_pages_data_is_what_the_lessons_have(pytestconfig: pytest.Config) -> None:
    made = page_data()
    if pytestconfig.getoption("--write-page-data"):
        PAGE_DATA.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    assert json.loads(PAGE_DATA.read_text()) == made
