"""Where sharing does not help: four prompts, alike in four ways."""

from looseleaf.engine.usage import Usage
from looseleaf.studio.lessons.scene import (
    Control,
    Lesson,
    Pool,
    Question,
    Rows,
    Scene,
    Step,
    Strip,
    Value,
)
from looseleaf.studio.lessons.stage import Stage

NUM_BLOCKS, BLOCK_SIZE = 32, 4
NAMES = ("A", "B", "C", "D")
PROMPT, OUTPUT = 18, 4
COMMON = 12
SHORT = 3
"""Tokens in common, fewer than a block has."""

CASES = ("long", "first", "short", "apart")


def _prompts(case: str) -> list[str]:
    """Letters for tokens: equal ones in equal places are the same token."""
    if case == "first":
        return [name + "s" * (COMMON - 1) + name * (PROMPT - COMMON) for name in NAMES]
    common = SHORT if case == "short" else COMMON
    return ["s" * common + name * (PROMPT - common) for name in NAMES]


class _Run:
    """`pool` and `usage` are of the moment that holds most."""

    def __init__(self, case: str) -> None:
        self.prompts = _prompts(case)
        self._stage = Stage(NUM_BLOCKS, BLOCK_SIZE)
        self.usage: Usage = self._stage.usage()
        self.pool: Pool = self._stage.pool()
        self.at_once = 0
        for name, letters in zip(NAMES, self.prompts, strict=True):
            # A token is its letter and its place.
            token_ids = [1000 * ord(letter) + place for place, letter in enumerate(letters)]
            self._stage.add(name, token_ids, OUTPUT)
            if case == "apart":
                self._run()
        self._run()
        counters = self._stage.scheduler.counters
        self.hits, self.asked = counters.prefix_hits, counters.prefix_queries
        self.computed = counters.computed_tokens

    def _run(self) -> None:
        while self._stage.engine.has_work:
            self._stage.step()
            now = self._stage.usage()
            self.at_once = max(self.at_once, len(self._stage.scheduler.running))
            if now.sequence_tokens > self.usage.sequence_tokens:
                self.usage, self.pool = now, self._stage.pool()


def _build(case: Value) -> Scene:
    assert isinstance(case, str)
    runs = {other: _Run(other) for other in CASES}
    run = runs[case]
    rows = Rows(
        ("case", "at_once", "without", "with", "found"),
        tuple(
            (
                other,
                r.at_once,
                r.usage.blocks_allocated + r.usage.blocks_saved,
                r.usage.blocks_allocated,
                r.hits,
            )
            for other, r in runs.items()
        ),
        CASES.index(case),
    )
    common = {"long": COMMON, "first": COMMON - 1, "short": SHORT, "apart": COMMON}[case]
    return Scene(
        (case,),
        {
            "requests": len(NAMES),
            "prompt": PROMPT,
            "block_size": BLOCK_SIZE,
            "common": common,
            "blocks": run.usage.blocks_allocated,
            "without": run.usage.blocks_allocated + run.usage.blocks_saved,
            "saved": run.usage.blocks_saved,
            "at_once": run.at_once,
            "hits": run.hits,
            "asked": run.asked,
            "computed": run.computed,
        },
        (
            Step(
                f"prompts_{case}",
                strips=tuple(
                    Strip(name, letters, BLOCK_SIZE)
                    for name, letters in zip(NAMES, run.prompts, strict=True)
                ),
            ),
            Step(f"run_{case}", pool=run.pool),
            Step(f"why_{case}", pool=run.pool),
            Step("compare", rows=rows),
        ),
        Question(2, {"hits": runs["first"].hits, "saved": runs["first"].usage.blocks_saved}),
    )


NO_SHARING = Lesson("no_sharing", (Control("case", CASES, "long"),), _build)
