"""Times steps of an engine, and fits a cost model to them."""

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.request import Params, Request, RequestId
from looseleaf.core.step import Step
from looseleaf.engine.engine import Engine
from looseleaf.planner.calibrated import CalibratedModel, features
from looseleaf.planner.cost_model import StepSummary
from looseleaf.planner.summary_times import step_summary

PROMPTS = (3, 24, 100, 400, 1200)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MOST_TOKENS = 5000
"""Of the prompts of one load: what takes longer tells little more."""

NUM_OUTPUT_TOKENS = 12
_NUM_FITS = 12
_MOST_FOLDS = 5


class TimedStep(NamedTuple):
    """`load` numbers the load that it was part of."""

    summary: StepSummary
    seconds: float
    load: int

    @property
    def kind(self) -> str:
        if not self.summary.chunk:
            return "decode"
        return "mixed" if self.summary.num_decodes else "prefill"


class Residuals(NamedTuple):
    """Of steps of loads that were left out of the fit: `median` and `p95` are of the errors without
    their sign, `total` is what all these steps take together, each against what was measured."""

    num_steps: int
    median: float
    p95: float
    total: float


def loads(max_num_seqs: int, max_model_len: int, num_slots: int) -> list[tuple[int, int]]:
    """(requests at once, tokens of each prompt) that an engine with so much room can run."""
    found = []
    for prompt in PROMPTS:
        for batch in BATCHES:
            whole = prompt + NUM_OUTPUT_TOKENS
            fits = whole <= max_model_len and batch * (whole + 64) <= num_slots
            if batch <= max_num_seqs and fits and batch * prompt <= max(prompt, MOST_TOKENS):
                found.append((batch, prompt))
    return found


def time_steps(
    engine: Engine,
    vocab_size: int,
    params: Params,
    plan: Sequence[tuple[int, int]],
    *,
    on_load: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> list[TimedStep]:
    """Run each load on an engine that has nothing else to do, and time its steps, scheduling
    included. `params` are those of all requests: greedy, `NUM_OUTPUT_TOKENS` and no end before.

    Prompts have nothing in common. A first load is not timed.
    """
    rng = random.Random(seed)
    timed: list[TimedStep] = []
    steps: list[Step] = []
    observe = _collect(steps)
    engine.observers.append(observe)
    try:
        for number, (batch, prompt) in enumerate([plan[0], *plan]):
            engine.forget_cache()
            for i in range(batch):
                ids = [i + 1, *(rng.randrange(vocab_size) for _ in range(prompt - 1))]
                engine.add(Request(RequestId(f"calibrate-{number}-{i}"), ids, params))
            while engine.has_work:
                start = time.perf_counter()
                engine.step()
                seconds = time.perf_counter() - start
                for step in steps if number else ():
                    summary = step_summary(step, rows_that_draw=True)
                    timed.append(TimedStep(summary, seconds, number))
                steps.clear()
            if number:
                on_load()
    finally:
        engine.observers.remove(observe)
    return [step for step in timed if step.summary.num_tokens]


def _collect(steps: list[Step]) -> Callable[[Step, object], None]:
    return lambda step, _: steps.append(step)


def calibrate(steps: Sequence[TimedStep], machine: str) -> CalibratedModel:
    """The model that meets these steps best, by their relative errors, and how well it meets each
    kind of step where its load is left out of the fit."""
    folds = min(_MOST_FOLDS, len({step.load for step in steps}))
    predicted = np.zeros(len(steps))
    for fold in range(folds if folds > 1 else 0):
        held = np.array([step.load % folds == fold for step in steps])
        rest = [step for step, out in zip(steps, held, strict=True) if not out]
        predicted[held] = _features(steps)[held] @ _fit(rest)
    residuals = {}
    for kind in ("prefill", "mixed", "decode"):
        chosen = [i for i, step in enumerate(steps) if step.kind == kind]
        if chosen and folds > 1:
            seconds = np.array([steps[i].seconds for i in chosen])
            residuals[kind] = _residuals(predicted[chosen], seconds)._asdict()
    return CalibratedModel(
        coefficients=tuple(_fit(steps).tolist()),
        measured={"machine": machine, "num_steps": len(steps), "residuals": residuals},
    )


def _features(steps: Sequence[TimedStep]) -> NDArray[np.float64]:
    return np.array([features(step.summary) for step in steps])


def _residuals(predicted: NDArray[np.float64], seconds: NDArray[np.float64]) -> Residuals:
    errors = np.abs(predicted / seconds - 1)
    total = float(predicted.sum() / seconds.sum() - 1)
    return Residuals(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.95)), total)


def _fit(steps: Sequence[TimedStep]) -> NDArray[np.float64]:
    """Least absolute relative errors, by least squares with ever better weights: a step that was
    interrupted is far off, and should not count for more."""
    seconds = np.array([step.seconds for step in steps])
    relative = _features(steps) / seconds[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    matrix = relative / scale
    weights = np.ones(len(steps))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_NUM_FITS):
        solution = _non_negative(matrix * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ solution - 1), 0.005))
    result: NDArray[np.float64] = solution / scale
    return result


def _non_negative(matrix: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with no coefficient below zero (Lawson and Hanson, 1974, chapter 23)."""
    num = matrix.shape[1]
    passive = np.zeros(num, bool)
    solution = np.zeros(num)
    for _ in range(3 * num):
        gradient = matrix.T @ (wanted - matrix @ solution)
        gradient[passive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        passive[best] = True
        while True:
            trial = np.zeros(num)
            trial[passive] = np.linalg.lstsq(matrix[:, passive], wanted, rcond=None)[0]
            if (trial[passive] > 0).all():
                solution = trial
                break
            low = passive & (trial <= 0)
            share = (solution[low] / np.maximum(solution[low] - trial[low], 1e-300)).min()
            solution = solution + share * (trial - solution)
            passive &= solution > 1e-15
            solution[~passive] = 0
            if not passive.any():
                break
    return solution
