"""Continuous batching beside a batch that ends together, on the same scheduler."""

from looseleaf.studio.lessons.scene import (
    Control,
    Figures,
    Lane,
    Lesson,
    Question,
    Rows,
    Scene,
    Step,
    Value,
)
from looseleaf.studio.lessons.stage import Stage

NUM_BLOCKS, BLOCK_SIZE = 64, 4
REQUESTS = (
    *(("A", 5, 3), ("B", 4, 9), ("C", 6, 5), ("D", 3, 12)),
    *(("E", 5, 2), ("F", 4, 7), ("G", 6, 4), ("H", 3, 6)),
)
"""(name, tokens of prompt, tokens of output). All are there from the beginning."""

SEATS = (1, 2, 3, 4, 6, 8)


def _ends(lanes: tuple[Lane, ...]) -> dict[str, int]:
    """After how many steps each has all of its tokens."""
    return {
        lane.name: max(i for i, cell in enumerate(lane.cells) if cell not in ("", "w", "i")) + 1
        for lane in lanes
    }


def _continuous(seats: int) -> tuple[Lane, ...]:
    stage = Stage(NUM_BLOCKS, BLOCK_SIZE, max_num_seqs=seats)
    for request in REQUESTS:
        stage.add(*request)
    stage.run()
    return stage.lanes()


def _static(seats: int) -> tuple[Lane, ...]:
    """The next ones are let in when the last one of a batch has ended."""
    lanes: list[Lane] = []
    stage = Stage(NUM_BLOCKS, BLOCK_SIZE, max_num_seqs=seats)
    for start in range(0, len(REQUESTS), seats):
        began = stage.num_steps
        for request in REQUESTS[start : start + seats]:
            stage.add(*request)
        stage.run()
        for lane in stage.lanes()[start : start + seats]:
            cells = ["w"] * began + [cell or "i" for cell in lane.cells[began:]]
            lanes.append(Lane(lane.name, tuple(cells)))
    return tuple(
        Lane(lane.name, lane.cells + ("",) * (stage.num_steps - len(lane.cells))) for lane in lanes
    )


def _idle(lanes: tuple[Lane, ...], seats: int) -> float:
    """The share of seats, over all steps, in which nobody computes."""
    busy = sum(cell not in ("", "w", "i") for lane in lanes for cell in lane.cells)
    return 1 - busy / (seats * len(lanes[0].cells))


def _build(seats: Value) -> Scene:
    assert isinstance(seats, int)
    static, continuous = _static(seats), _continuous(seats)
    static_ends, ends = _ends(static), _ends(continuous)
    first = min(REQUESTS[:seats], key=lambda request: request[2])[0]
    last = max(REQUESTS[:seats], key=lambda request: request[2])[0]
    mixed = [
        (step, cells)
        for step, cells in enumerate(zip(*(lane.cells for lane in continuous), strict=True), 1)
        if any(c.startswith("p") for c in cells) and "d" in cells
    ]
    outputs = sum(output for _, _, output in REQUESTS)

    def mean(of: dict[str, int]) -> float:
        return sum(of.values()) / len(of)

    rows = Rows(
        ("kind", "steps", "idle", "tokens_per_step", "mean_end"),
        tuple(
            (
                kind,
                len(lanes[0].cells),
                _idle(lanes, seats),
                outputs / len(lanes[0].cells),
                mean(when),
            )
            for kind, lanes, when in (
                ("static", static, static_ends),
                ("continuous", continuous, ends),
            )
        ),
    )
    mixed_step: Figures = {}
    if mixed:
        step, cells = mixed[0]
        mixed_step = {
            "step": step,
            "chunk": sum(int(cell[1:]) for cell in cells if cell.startswith("p")),
            "decoding": cells.count("d"),
        }
    return Scene(
        (seats,),
        {
            "seats": seats,
            "requests": len(REQUESTS),
            "static_steps": len(static[0].cells),
            "steps": len(continuous[0].cells),
            "static_idle": _idle(static, seats),
            "idle": _idle(continuous, seats),
            "gain": len(static[0].cells) / len(continuous[0].cells),
            "static_mean": mean(static_ends),
            "mean": mean(ends),
        },
        (
            Step("static", lanes=static),
            Step(
                "empty" if first != last and static_ends[first] < static_ends[last] else "single",
                {
                    "first": first,
                    "first_end": static_ends[first],
                    "last": last,
                    "last_end": static_ends[last],
                },
                lanes=static,
            ),
            Step("continuous", lanes=continuous),
            Step("mixed" if mixed else "unmixed", mixed_step, lanes=continuous),
            Step("compare", rows=rows),
        ),
        Question(2),
    )


BATCHING = Lesson("batching", (Control("max_num_seqs", SEATS, 4),), _build)
