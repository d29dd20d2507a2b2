"""Fitting a cost model to timed steps: a machine that is known, with noise and without."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.engine.llm import LLM
from looseleaf.planner.calibrate import (
    BATCHES,
    NUM_OUTPUT_TOKENS,
    PROMPTS,
    TimedStep,
    _non_negative,
    calibrate,
    loads,
    time_steps,
)
from looseleaf.planner.calibrated import NUM_FEATURES, CalibratedModel, load_calibration
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.sampling.params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)


def truth(step: StepSummary) -> float:
    """A machine that reads its weights once for up to 16 tokens, and computes from there on."""
    weights = 5e-3 + 2e-4 * max(0, step.num_tokens - 16)
    return 1e-3 + weights + 1e-4 * step.num_rows + 2e-7 * step.decode_context + 1e-8 * step.pairs


def steps_of(noise: random.Random | None = None) -> list[TimedStep]:
    """Those of all loads on an engine that computes 512 tokens in a step."""
    timed = []
    for load, (batch, prompt) in enumerate(loads(64, 4096, 100_000)):
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
    steps = steps_of(random.Random(0))
    model = calibrate(steps, "a machine")
    for parts in ([(1, 777)] * 6, [(512, 512)], [(300, 100), *[(1, 500)] * 12]):
        summary = summarize([StepPart(*part) for part in parts])
        assert model.seconds_of(summary) == pytest.approx(truth(summary), rel=0.03), parts
    residuals = model.measured["residuals"]
    assert sum(one["num_steps"] for one in residuals.values()) == len(steps)
    assert all(0.005 < one["median"] < 0.04 for one in residuals.values())
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
    assert {prompt for _, prompt in every} == set(PROMPTS)
    assert max(batch for batch, _ in every) == max(BATCHES)
    few = loads(8, 128, 600)
    assert few
    assert all(batch <= 8 and prompt + NUM_OUTPUT_TOKENS <= 128 for batch, prompt in few)
    assert all(batch * (prompt + NUM_OUTPUT_TOKENS) <= 600 for batch, prompt in few)
    assert loads(8, 5, 10**6) == []


def test_steps_of_a_real_engine(tiny_model: Path) -> None:
    with LLM(str(tiny_model), max_num_batched_tokens=64) as llm:
        done: list[int] = []
        plan = [(1, 3), (4, 100), (8, 24)]
        steps = time_steps(llm.engine, 259, PARAMS, plan, on_load=lambda: done.append(1))
        assert not llm.engine.has_work
        assert not llm.engine.observers
    assert len(done) == 3
    assert {step.load for step in steps} == {1, 2, 3}
    assert {step.kind for step in steps} >= {"prefill", "decode"}
    alone = [step.summary for step in steps if step.load == 1]
    assert alone[0] == StepSummary(1, 0, 0, 0, 3, 6)
    assert alone[1] == StepSummary(1, 1, 4, 4, 0, 0)
    assert len(alone) == NUM_OUTPUT_TOKENS
    prompts = sum(step.summary.chunk for step in steps if step.load == 2)
    assert 400 - 4 <= prompts <= 400  # a last token of a prompt alone counts as decoding
    assert all(step.seconds > 0 for step in steps)
    model = calibrate(steps, "here")
    assert model.seconds([StepPart(1, 10)]) > 0


def test_a_file_brings_back_the_model(tmp_path: Path) -> None:
    model = calibrate(steps_of(), "a machine")
    model.save(tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json")
    assert again.coefficients == model.coefficients
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
