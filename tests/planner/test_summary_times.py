"""Times by what a step's sequences are together, for one step and for runs of decoding."""

from itertools import islice

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.cost_model import StepSummary
from looseleaf.planner.summary_times import SummaryTimes, step_summary
from looseleaf.sampling.params import SamplingParams

MODEL = CalibratedModel(
    coefficients=tuple(0.001 * (i + 1) for i in range(NUM_FEATURES)), measured={}
)


def step(*sequences: tuple[int, int, bool]) -> Step:
    """Of (tokens, first position, whether it draws)."""
    parts = []
    for i, (num, first, draws) in enumerate(sequences):
        name = RequestId(str(i))
        samples = (Sample(name, SamplingParams(seed=0), 0, first + num),) if draws else ()
        parts.append(ScheduledSequence(name, (1,) * num, first, 0, (BlockId(0),), samples))
    return Step(1, tuple(parts))


def test_rows_of_logits_are_those_that_draw_or_all() -> None:
    mixed = step((1, 9, True), (1, 29, True), (8, 0, False))
    assert step_summary(mixed, rows_that_draw=True) == StepSummary(2, 2, 40, 30, 8, 36, 1)
    assert step_summary(mixed, rows_that_draw=False).num_rows == 3


@pytest.mark.parametrize("rows_that_draw", [False, True])
def test_runs_of_decoding_take_what_their_steps_take(rows_that_draw: bool) -> None:
    times = SummaryTimes(MODEL, rows_that_draw=rows_that_draw)
    stored = [1, 900, 4095]
    for i, seconds in enumerate(islice(times.decoding(stored), 6)):
        one = times.seconds(step(*((1, length + i, True) for length in stored)))
        assert seconds == pytest.approx(one)
