"""Fitting a cost model to timed steps: a machine that is known, with noise and without."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step, StepResult
from looseleaf.engine.build import build
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.calibrate import _non_negative, calibrate
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel, load_calibration
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.planner.loads import (
    BATCHES,
    DOCUMENTS,
    NUM_OUTPUT_TOKENS,
    PAUSES,
    PROMPTS,
    SHARED,
    VISITS,
    CallShape,
    Load,
    loads,
    served_steps,
)
from looseleaf.planner.step_timer import StepTimer, TimedStep

BURSTS = [
    (batch, prompt)
    for prompt in PROMPTS
    for batch in BATCHES
    if batch * prompt <= max(5000, prompt)
]


def truth(step: StepSummary) -> float:
    """A machine that reads its weights once for up to 16 tokens, and computes from there on."""
    weights = 5e-3 + 2e-4 * max(0, step.num_tokens - 16)
    return 1e-3 + weights + 1e-4 * step.num_rows + 2e-7 * step.decode_context + 1e-8 * step.pairs


def steps_of(noise: random.Random | None = None) -> list[TimedStep]:
    """Those of all loads on an engine that computes 512 tokens in a step."""
    timed = []
    for load, (batch, prompt) in enumerate(BURSTS):
        done = [0] * batch
        while min(done) < prompt + NUM_OUTPUT_TOKENS - 1:
            budget, parts = 512, []
            for i in range(batch):
                left = max(prompt - done[i], 1) if done[i] < prompt + NUM_OUTPUT_TOKENS - 1 else 0
                if num := min(left, budget):
                    parts.append(StepPart(num, done[i]))
                    budget -= num
                    done[i] += num
            summary = summarize(parts)
            seconds = truth(summary)
            if noise is not None:
                seconds *= noise.gauss(1, 0.02) * (5 if noise.random() < 0.05 else 1)
            timed.append(TimedStep(summary, seconds, load))
    return timed


def test_a_machine_that_is_known_is_found() -> None:
    model = calibrate(steps_of(), "a machine")
    for parts in ([(1, 777)] * 6, [(512, 512)], [(300, 100), *[(1, 500)] * 12], [(40, 0)]):
        summary = summarize([StepPart(*part) for part in parts])
        assert model.seconds_of(summary) == pytest.approx(truth(summary), rel=0.01), parts
    for one in model.measured["residuals"].values():
        assert one["median"] < 0.01
    assert not model.is_noisy


def test_a_machine_with_other_things_to_do_is_noticed() -> None:
    noise = random.Random(0)
    busy = [step._replace(seconds=step.seconds * noise.uniform(1, 3)) for step in steps_of()]
    assert calibrate(busy, "a machine").is_noisy


def test_noise_and_interrupted_steps_do_not_mislead() -> None:
    noise = random.Random(0)
    steps = [*steps_of(noise), *steps_of(noise)]
    model = calibrate(steps, "a machine")
    for parts in ([(1, 777)] * 6, [(512, 512)], [(300, 100), *[(1, 500)] * 12]):
        summary = summarize([StepPart(*part) for part in parts])
        assert model.seconds_of(summary) == pytest.approx(truth(summary), rel=0.07), parts
    residuals = model.measured["residuals"]
    assert sum(one["num_steps"] for one in residuals.values()) == len(steps)
    assert all(0.005 < one["median"] < 0.06 for one in residuals.values())
    assert all(one["p95"] > 0.04 for one in residuals.values())  # the interrupted ones
    assert "decode steps" in model.known_error


def test_more_work_never_takes_less() -> None:
    model = calibrate(steps_of(random.Random(1)), "a machine")
    assert min(model.coefficients) >= 0
    rows = [model.seconds([StepPart(1, 100)] * n) for n in range(1, 300)]
    assert rows == sorted(rows)
    chunks = [model.seconds([StepPart(n, 0)]) for n in range(2, 4000, 17)]
    assert chunks == sorted(chunks)


def test_least_squares_without_negative_coefficients() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((40, 6))
    wanted = matrix @ np.array([1.0, 0, 2, 0, 0, 3])
    assert _non_negative(matrix, wanted) == pytest.approx(np.array([1, 0, 2, 0, 0, 3]), abs=1e-8)
    solution = _non_negative(matrix, wanted - 2 * matrix[:, 1])
    assert (solution >= 0).all()
    gradient = matrix.T @ (matrix @ solution - (wanted - 2 * matrix[:, 1]))
    assert (gradient > -1e-8).all()  # nothing is gained by more of any
    assert (np.abs(gradient[solution > 0]) < 1e-8).all()


def test_loads_fit_into_the_engine() -> None:
    every = loads(1000, 10**6, 10**9)
    bursts = {(load.at_once, load.calls[0].num_prompt_tokens) for load in every}
    assert {prompt for _, prompt in bursts} >= set(PROMPTS)
    assert max(batch for batch, _ in bursts) == max(BATCHES)
    assert {call.num_shared for load in every for call in load.calls} >= {0, *SHARED}
    assert all(len(load.calls) >= load.at_once for load in every)
    visits = [load for load in every if load.calls[0].pause]
    readers = [
        load
        for load in every
        if load not in visits and len({call.document for call in load.calls}) > 1
    ]
    for load in readers:
        outputs = [call.num_output_tokens for call in load.calls]
        assert sorted(set(outputs)) == outputs  # they leave one by one
    assert {(call.num_shared, load.at_once) for load in readers for call in load.calls} == {
        (length, num) for length, documents, num in DOCUMENTS if documents > 1
    }
    assert [(load.calls[0].num_shared, load.at_once) for load in visits] == list(VISITS)
    for load in visits:
        assert len({call.num_shared for call in load.calls}) == 1
        assert len({call.document for call in load.calls}) == load.at_once
    pauses = [call.pause for load in visits for call in load.calls]
    assert PAUSES[0] <= min(pauses) < max(pauses) <= PAUSES[1]
    answers = [call.num_output_tokens for load in visits for call in load.calls]
    assert min(answers) < 20 < 60 < max(answers)
    few = loads(8, 128, 1100)
    assert few
    assert all(load.at_once <= 8 and load.num_slots <= 1100 for load in few)
    assert all(call.num_tokens <= 128 for load in few for call in load.calls)
    assert loads(8, 5, 10**6) == []
    assert loads(64, 4096, 10**5, 1) != loads(64, 4096, 10**5, 2)


async def test_steps_of_a_real_engine(tiny_model: Path) -> None:
    settings = EngineSettings(model=str(tiny_model), max_num_batched_tokens=64)
    done: list[int] = []
    alone, chunked, sharing, two_documents = (
        Load(1, (CallShape(3, 12),)),
        Load(4, (CallShape(100, 12),) * 4),
        Load(2, (CallShape(150, 12, 140),) * 4),
        Load(4, (CallShape(150, 24, 140, 0), CallShape(150, 24, 140, 1)) * 2),
    )
    visits = Load(1, (CallShape(100, 3, pause=0.02),) * 3)
    given = [alone, chunked, sharing, two_documents, visits]
    timer = await served_steps(build(settings), given, on_load=lambda: done.append(1))
    assert len(done) == 5
    assert len(timer.besides) == 3
    assert all(-0.001 < seconds < 1 for seconds in timer.besides)
    steps = [step for step in timer.steps if step.load != 5]
    assert min(step.summary.idle for step in timer.steps if step.load == 5) == 0
    assert 0.02 < max(step.summary.idle for step in timer.steps if step.load == 5) < 10
    assert {step.load for step in steps} == {1, 2, 3, 4}
    assert {step.kind for step in steps} >= {"prefill", "mixed", "decode"}
    of_one = [step.summary for step in steps if step.load == 1]
    assert 0 < of_one[0].idle < 10
    assert of_one[0]._replace(idle=0) == StepSummary(1, 0, 0, 0, 3, 6, 1)
    assert of_one[1] == StepSummary(1, 1, 4, 4, 0, 0)
    assert len(of_one) == 12
    prompts = sum(step.summary.chunk for step in steps if step.load == 2)
    assert 400 - 4 <= prompts <= 400  # a last token of a prompt alone counts as decoding
    assert {step.summary.shared_context for step in steps if step.load == 3} == {0, 128}
    assert max(step.summary.shared_context for step in steps if step.load == 4) == 2 * 128
    assert all(step.seconds > 0 for step in steps)
    model = calibrate(steps, "here", [0.001, 0.003, 0.002])
    assert model.seconds([StepPart(1, 10)]) > 0
    assert model.measured["request_seconds"] == 0.002


class Clock:
    """Says what was set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    clock = Clock()
    engine = SimpleNamespace(observers=[], has_work=False)
    service = SimpleNamespace(watchers=[])
    timer = StepTimer(service, engine, 16, clock)  # type: ignore[arg-type]
    watch, observe = service.watchers[0], engine.observers[0]
    sequence = ScheduledSequence(RequestId("a"), (1,), 5, 0, (), ())

    def pass_to(now: float, *, has_work: bool, step: bool) -> None:
        if step:
            observe(Step(1, (sequence,)), StepResult(1, (1,)))
        clock.now, engine.has_work = now, has_work
        watch(engine)

    timer.load = 7
    pass_to(1.0, has_work=False, step=False)
    pass_to(5.0, has_work=True, step=False)  # a request comes after a long time
    pass_to(5.5, has_work=True, step=False)  # another one: taking it in holds up the first
    pass_to(6.5, has_work=True, step=True)
    pass_to(6.6, has_work=True, step=False)
    pass_to(7.0, has_work=False, step=True)
    timer.load = None
    pass_to(9.0, has_work=True, step=False)
    pass_to(9.5, has_work=False, step=True)
    assert [(step.seconds, step.load) for step in timer.steps] == [(1.5, 7), (0.5, 7)]
    # Nothing is known of a step before the first; the second begins where that ended.
    assert [step.summary.idle for step in timer.steps] == [math.inf, 0]
    timer.load = 8
    pass_to(10.0, has_work=True, step=False)
    pass_to(10.2, has_work=False, step=True)
    assert timer.steps[-1].summary.idle == 0.5  # after one that was not noted


def test_a_file_brings_back_the_model(tmp_path: Path) -> None:
    model = calibrate(steps_of(), "a machine")
    model.save(tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json")
    assert again.coefficients == model.coefficients
    assert again.cooling == model.cooling is not None
    assert (again.name, again.known_error) == (model.name, model.known_error)
    parts = [StepPart(1, 99)] * 5
    assert again.seconds(parts) == model.seconds(parts) > 0
    assert again.seconds([]) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "no calibration of this version"),
        ({"coefficients": [1.0]}, f"{NUM_FEATURES} coefficients"),
        ({"coefficients": [-1.0] * NUM_FEATURES}, "none below zero"),
        ({"coefficients": "many"}, "damaged"),
        ({"knots": [1]}, "damaged"),
        ({"measured": None}, "damaged"),
        ({"cooling": [8]}, "damaged"),
        ({"cooling": [8, 1, "long"]}, "damaged"),
        ({"cooling": [0.5, 1, 0]}, "at least 1 step"),
        ({"cooling": [8, 0, 0]}, "above 0 s"),
        ({"cooling": [8, 1, -1]}, "not below 0 s"),
        ({"measured": {"request_seconds": -0.5}}, "request_seconds is -0.5"),
        ({"measured": {"request_seconds": "long"}}, "request_seconds is long"),
    ],
)
def test_files_that_are_none(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "c.json"
    CalibratedModel(coefficients=(0.1,) * NUM_FEATURES, measured={}).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=words):
        load_calibration(path)


@pytest.mark.parametrize("text", [None, "", "[]", "[" * 100_000])
def test_files_that_are_no_json(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.json"):
        load_calibration(path)
