"""What decoding sequences read together is what their block tables say."""

from collections import Counter

import pytest
from planning import mixed_arrivals

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step, StepResult
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.executors.rows import Rows
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.cooling import Cooling
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.replay import Replay, Replayed, planned_scheduler
from looseleaf.planner.shared_reads import READ_TOGETHER, SharedReads
from looseleaf.planner.summary_times import SummaryTimes


def model() -> CalibratedModel:
    coefficients = [0.001] * NUM_FEATURES
    coefficients[-6] = 0.0003  # of what is read
    cooling = Cooling(8, 0.04)
    return CalibratedModel(coefficients=tuple(coefficients), measured={}, cooling=cooling)


def run(block_size: int, num_blocks: int, *, every_step: bool) -> Replayed:
    """Each of the engine's own steps is checked against all block tables."""
    settings = EngineSettings(
        max_num_batched_tokens=64,
        max_num_seqs=12,
        block_size=block_size,
        admission_headroom=0,
    )
    memory = MemoryPlan(num_blocks, block_size, 1, num_blocks * block_size)
    scheduler = planned_scheduler(settings, memory)
    clock = VirtualClock()
    times = SummaryTimes(model(), rows_that_draw=True).for_replay(block_size, clock)
    replay = Replay(scheduler, PlannedExecutor(times, clock), every_step=every_step)
    if every_step:
        check = Check(block_size, num_blocks)
        replay.engine.observers.append(check)
    result = replay.run(mixed_arrivals(5, 50, 0.1))
    assert isinstance(scheduler.allocator, BlockTables)
    if every_step:
        assert check.most > READ_TOGETHER
    return result


class Check:
    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._rows = Rows(num_blocks, block_size)
        self._shared = SharedReads(block_size)
        self._every = max(1, READ_TOGETHER // block_size)
        self._block_size = block_size
        self._entered: dict[RequestId, int] = {}
        self.most = 0

    def __call__(self, step: Step, _: StepResult) -> None:
        self._rows.update(step)
        for name in step.finished:
            self._entered.pop(name, None)
        pieces: Counter[tuple[int, ...]] = Counter()
        for one in step.sequences:
            if len(one.token_ids) > 1:
                self._entered.pop(one.request_id, None)
                continue
            first = self._entered.setdefault(one.request_id, one.first_position)
            table, every = self._rows.table(one.request_id), self._every
            for i in range(first // (every * self._block_size)):
                pieces[(i, *table[i * every : (i + 1) * every])] += 1
        expected = sum(n - 1 for n in pieces.values()) * self._every * self._block_size
        assert self._shared.step(step) == expected
        self.most = max(self.most, expected)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 40), (8, 200), (50, 30)])
def test_every_step_of_an_engine(block_size: int, num_blocks: int) -> None:
    one_by_one = run(block_size, num_blocks, every_step=True)
    at_once = run(block_size, num_blocks, every_step=False)
    assert at_once.num_plain_steps < one_by_one.num_plain_steps
    assert at_once.outcomes == one_by_one.outcomes
    assert at_once.steps == one_by_one.steps


def test_two_that_share_a_prompt_read_it_once() -> None:
    shared = SharedReads(16)
    table = tuple(BlockId(i) for i in range(20))

    def step(*names: str, finished: tuple[str, ...] = (), told: bool = False) -> Step:
        parts = [
            ScheduledSequence(RequestId(n), (7,), 310, 0, table if told else (), ()) for n in names
        ]
        return Step(1, tuple(parts), finished=tuple(map(RequestId, finished)))

    assert shared.step(step("a", told=True)) == 0
    assert shared.step(step("b", told=True)) == 256
    assert shared.step(step("a", "b")) == 256
    assert shared.step(step("c", told=True)) == 512
    assert shared.step(step("b", finished=("a",))) == 256
    assert shared.decoding([RequestId("b")], [320]) == 0
