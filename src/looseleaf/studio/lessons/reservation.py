"""Why reservation wastes, on a pool that one can see all of."""

from looseleaf.core.request import Status
from looseleaf.engine.contiguous import RULES
from looseleaf.studio.lessons.scene import (
    Bar,
    Control,
    Figures,
    Lesson,
    Question,
    Scene,
    Step,
    Value,
)
from looseleaf.studio.lessons.stage import PAGED, Stage, slots

NUM_BLOCKS, BLOCK_SIZE = 32, 4
MAX_MODEL_LEN = 48
REQUESTS = (
    *(("A", 10, 17), ("B", 5, 5), ("C", 14, 18), ("D", 6, 4)),
    *(("E", 9, 9), ("F", 4, 8), ("G", 12, 6)),
)
"""(name, tokens of prompt, tokens of output)."""

LATER = 2
"""Steps after all have come: none has ended yet."""

ALLOCATORS = (*RULES, PAGED)


def _alone(rule: str) -> Stage:
    stage = Stage(NUM_BLOCKS, BLOCK_SIZE, max_model_len=MAX_MODEL_LEN, rule=rule)
    stage.add(*REQUESTS[0])
    stage.step()
    return stage


def _crowd(stage: Stage) -> None:
    for request in REQUESTS[1:]:
        stage.add(*request)
    stage.step()


def _build(rule: Value) -> Scene:
    assert isinstance(rule, str)
    stage = _alone(rule)
    name, prompt, output = REQUESTS[0]
    alone, alone_pool = slots(stage.usage()), stage.pool(kinds=True)
    _crowd(stage)
    crowd, crowd_pool = slots(stage.usage()), stage.pool(kinds=True)
    running = sum(r.status is Status.RUNNING for r in stage.requests.values())
    waiting = len(stage.requests) - running
    bars = []
    served = {}
    for other in ALLOCATORS:
        same = _alone(other)
        _crowd(same)
        for _ in range(LATER):
            same.step()
        now = same.usage()
        served[other] = len(same.scheduler.running)
        parts = (
            ("stored", now.stored),
            ("reserved", now.reserved),
            ("internal", now.internal),
            ("external", now.external),
            ("free", now.total - now.allocated),
        )
        bars.append(Bar(other, parts, other == rule))
        if other == rule:
            later, later_pool = slots(now), same.pool(kinds=True)
    figures: Figures = {
        "name": name,
        "prompt": prompt,
        "output": output,
        "total": NUM_BLOCKS * BLOCK_SIZE,
        "block_size": BLOCK_SIZE,
        "max_model_len": MAX_MODEL_LEN,
        "requests": len(REQUESTS),
    }
    return Scene(
        (rule,),
        figures,
        (
            Step("unknown", {**alone, "held": len(alone_pool.blocks)}, alone_pool),
            Step("kinds", alone, alone_pool),
            Step("crowd", {**crowd, "running": running, "waiting": waiting}, crowd_pool),
            Step("later", {**later, "steps": LATER}, later_pool),
            Step(
                "compare",
                {**later, "max": served["max"], "paged": served[PAGED]},
                bars=tuple(bars),
                unit="slots",
            ),
        ),
        Question(1, {"most": BLOCK_SIZE - 1}),
    )


RESERVATION = Lesson("reservation", (Control("allocator", ALLOCATORS, "max"),), _build)
