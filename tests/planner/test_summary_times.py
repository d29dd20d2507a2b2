"""Times by what a step's sequences are together, for one step and for runs of decoding."""

from itertools import islice

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.cost_model import StepSummary
from looseleaf.planner.plan import run_plan
from looseleaf.planner.summary_times import SummaryTimes, step_summary
from looseleaf.planner.trace_types import Trace, TraceRequest
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


@pytest.mark.parametrize("besides", [0.0, 0.005])
def test_readers_have_tokens_later_and_ask_again_later(besides: float) -> None:
    coefficients = (0.01,) + (0.0,) * (NUM_FEATURES - 1)
    model = CalibratedModel(coefficients=coefficients, measured={"request_seconds": besides})
    trace = Trace((TraceRequest(None, 10, 4),) * 5, (), True, 16, users=1)
    times = SummaryTimes(model, rows_that_draw=True)
    summary = run_plan(trace, EngineSettings(), MemoryPlan(100, 16, 1, 1600), times).summary
    assert summary.ttft is not None
    assert summary.tpot is not None
    assert summary.e2e is not None
    assert summary.ttft.p50 == pytest.approx(0.01 + besides)
    assert summary.tpot.p50 == pytest.approx(0.01)
    assert summary.e2e.max == pytest.approx(0.04 + besides)
    assert summary.duration == pytest.approx(5 * (0.04 + besides))
    assert summary.busy == pytest.approx(5 * 0.04)
