"""What steps and pauses do to the caches, and that both calibration and replay see it."""

import random
from math import inf

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.planner.calibrate import calibrate
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.cooling import Caches, Cooling
from looseleaf.planner.cost_model import StepSummary
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.step_timer import TimedStep, summaries
from looseleaf.planner.summary_times import SummaryTimes
from looseleaf.sampling.params import SamplingParams

COOLING = Cooling(8, 0.04)


def test_steps_warm_and_time_cools() -> None:
    caches = Caches(Cooling(4, 1.0))
    assert caches.cold == 1
    caches.step(0.0)
    assert caches.cold == 0.75
    caches.step(0.0)
    assert caches.cold == 0.75**2
    warm = caches.cold
    caches.rest(0.1)
    assert warm < caches.cold < 1
    caches.rest(inf)
    assert caches.cold == 1
    safe = Caches(Cooling(4, 1.0, 0.5))
    safe.step(0.5)
    assert safe.cold == 0.75
    safe.rest(0.5)
    assert safe.cold == 0.75
    safe.rest(0.6)
    assert safe.cold > 0.76
    # Short steps keep more in the caches than long ones.
    settled = []
    for seconds in (0.001, 0.1, 1.0):
        caches = Caches(Cooling(4, 1.0))
        for _ in range(1000):
            caches.step(seconds)
        settled.append(caches.cold)
    assert settled == sorted(settled)
    assert 0 < settled[0] < 0.01 < 0.5 < settled[2] < 1


def machine(noise: random.Random | None = None) -> list[TimedStep]:
    """One whose decoding takes 3 ms with warm caches and 6 ms with cold ones, and for each token of
    context 10 us more with cold ones; it sees a prompt, then an answer, then a pause, again and
    again."""
    rng = random.Random(0)
    caches = Caches(COOLING)
    steps = []
    for load in range(150):
        idle = rng.choice([0.0, 0.02, 0.1, 1.0])
        prompt = rng.randint(8, 1000)
        shapes = [StepSummary(1, 0, 0, 0, prompt, prompt * (prompt + 1) // 2, 1)]
        shapes += [StepSummary(1, 1, prompt + i, prompt + i, 0, 0) for i in range(1, 40)]
        for i, shape in enumerate(shapes):
            caches.rest(0.0 if i else idle)
            more = 0.003 + 1e-5 * shape.decode_context
            seconds = 0.003 + 0.0005 * shape.chunk + more * caches.cold
            if noise is not None:
                seconds *= noise.gauss(1, 0.02)
            steps.append(TimedStep(shape._replace(idle=0.0 if i else idle), seconds, load))
            caches.step(seconds)
    return steps


@pytest.mark.parametrize("noise", [None, random.Random(1)])
def test_a_machine_with_caches_is_found(noise: random.Random | None) -> None:
    steps = machine(noise)
    model = calibrate(steps, "a machine")
    exact = machine()
    errors = [
        abs(model.seconds_of(summary) / step.seconds - 1)
        for step, summary in zip(exact, summaries(steps, model.cooling), strict=True)
    ]
    assert sorted(errors)[len(errors) * 19 // 20] < 0.02
    # Nothing else tells one decoding step from another.
    spread = [step.seconds for step in exact if step.kind == "decode"]
    assert max(spread) > 1.3 * min(spread)


def decode(length: int) -> Step:
    name = RequestId("a")
    samples = (Sample(name, SamplingParams(seed=0), 0, length + 1),)
    return Step(1, (ScheduledSequence(name, (1,), length, 0, (BlockId(0),), samples),))


def model(cooling: Cooling | None = COOLING) -> CalibratedModel:
    coefficients = [0.0] * NUM_FEATURES
    coefficients[0], coefficients[-4], coefficients[-1] = 0.003, 0.003, 0.001
    return CalibratedModel(coefficients=tuple(coefficients), measured={}, cooling=cooling)


def test_a_replay_warms_the_caches_and_its_pauses_cool_them() -> None:
    clock = VirtualClock()
    times = SummaryTimes(model(), rows_that_draw=True).for_replay(16, clock)
    executor = PlannedExecutor(times, clock)

    def run(num: int) -> list[float]:
        found = []
        for length in range(num):
            before = clock.now
            executor.execute(decode(length))
            found.append(clock.now - before)
        return found

    first = run(60)
    assert first[1:] == sorted(first[1:], reverse=True)
    assert first[1] - first[-1] > 0.001
    caches = Caches(COOLING)
    caches.step(first[0])
    assert first[1] == pytest.approx(0.003 + 0.003 * caches.cold)
    clock.now += 1.0
    after = run(2)
    assert after[0] == pytest.approx(0.006 + 0.001 * 0.6931, abs=1e-6)  # a pause, and cold caches
    assert first[-1] < after[1] < after[0]


def test_a_run_of_decoding_is_its_steps() -> None:
    found = []
    for at_once in (True, False):
        clock = VirtualClock(5.0)
        times = SummaryTimes(model(), rows_that_draw=True).for_replay(16, clock)
        steps = times.decoding([10], [RequestId("a")])
        ends = []
        for i in range(20):
            seconds = next(steps) if at_once else times.seconds(decode(10 + i))
            clock.now += seconds
            ends.append(clock.now)
        found.append(ends)
    assert found[0] == found[1]


def test_without_a_past_nothing_is_cold() -> None:
    times = SummaryTimes(model(), rows_that_draw=True)
    assert times.seconds(decode(10)) == times.seconds(decode(10)) == 0.003
    clock = VirtualClock()
    blind = SummaryTimes(model(None), rows_that_draw=True).for_replay(16, clock)
    assert blind.seconds(decode(10)) == 0.003
