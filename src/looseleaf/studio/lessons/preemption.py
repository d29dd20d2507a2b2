"""When the pool is full, somebody gives way."""

from functools import cache

from looseleaf.studio.lessons.scene import (
    Control,
    Figure,
    Lane,
    Lesson,
    Pool,
    Question,
    Rows,
    Scene,
    Step,
    Value,
)
from looseleaf.studio.lessons.stage import Stage

BLOCK_SIZE = 4
REQUESTS = (("A", 6, 18), ("B", 6, 18), ("C", 6, 18), ("D", 6, 18))
"""(name, tokens of prompt, tokens of output)."""

POOLS = (8, 12, 16, 20, 24)


class _Run:
    def __init__(self, num_blocks: int) -> None:
        stage = Stage(num_blocks, BLOCK_SIZE)
        for request in REQUESTS:
            stage.add(*request)
        stage.step()
        self.start = stage.pool()
        self.start_running = len(stage.scheduler.running)
        self.full = self.start
        self.full_step = 1
        self.victim = ""
        self.preempted: Pool | None = None
        self.preempted_step = 0
        while stage.engine.has_work:
            before, step = stage.pool(), stage.num_steps
            stage.step()
            gone = [lane.name for lane in stage.lanes() if lane.cells[-1] == "x"]
            if gone and self.preempted is None:
                self.full, self.full_step = before, step
                self.victim = gone[0]
                self.preempted, self.preempted_step = stage.pool(), stage.num_steps
            elif self.preempted is None and len(stage.pool().blocks) >= len(self.full.blocks):
                self.full, self.full_step = stage.pool(), stage.num_steps
        self.lanes: tuple[Lane, ...] = stage.lanes()
        counters = stage.scheduler.counters
        self.preemptions, self.steps = counters.preemptions, counters.steps
        self.computed = counters.computed_tokens


_run = cache(_Run)


def _held(pool: Pool, name: str | None = None) -> int:
    if name is None:
        return sum(block.ref_count > 0 for block in pool.blocks)
    return next(len(holder.table) for holder in pool.sequences if holder.name == name)


def _build(num_blocks: Value) -> Scene:
    assert isinstance(num_blocks, int)
    run = _run(num_blocks)
    needed = sum(prompt + output - 1 for _, prompt, output in REQUESTS)
    figures: dict[str, Figure] = {
        "pool": num_blocks,
        "requests": len(REQUESTS),
        "prompt": REQUESTS[0][1],
        "output": REQUESTS[0][2],
        "final_blocks": -(-(REQUESTS[0][1] + REQUESTS[0][2] - 1) // BLOCK_SIZE),
        "preemptions": run.preemptions,
        "steps": run.steps,
        "computed": run.computed,
        "needed": needed,
        "again": run.computed - needed,
        "best_steps": _run(POOLS[-1]).steps,
    }
    start = Step("start", {"running": run.start_running, "blocks": _held(run.start)}, run.start)
    steps: tuple[Step, ...] = (start,)
    if run.preempted is None:
        most = {"held": _held(run.full), "step": run.full_step}
        steps += (Step("enough", most, run.full),)
    else:
        steps += (
            Step("full", {"held": _held(run.full), "step": run.full_step}, run.full),
            Step(
                "gives_way",
                {
                    "victim": run.victim,
                    "gave": _held(run.full, run.victim),
                    "step": run.preempted_step,
                    "first": run.preempted.sequences[0].name,
                },
                run.preempted,
            ),
            Step("again", lanes=run.lanes),
        )
    rows = Rows(
        ("pool_blocks", "preemptions", "steps", "computed", "again"),
        tuple(
            (size, r.preemptions, r.steps, r.computed, r.computed - needed)
            for size, r in ((size, _run(size)) for size in POOLS)
        ),
        POOLS.index(num_blocks),
    )
    steps += (Step("cost", lanes=run.lanes, rows=rows),)
    return Scene((num_blocks,), figures, steps, Question(1))


PREEMPTION = Lesson("preemption", (Control("num_blocks", POOLS, 16),), _build)
