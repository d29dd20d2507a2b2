"""Fits a cost model to steps that were timed."""

from collections.abc import Sequence
from functools import cache
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.planner.calibrated import CalibratedModel, features
from looseleaf.planner.cooling import Cooling
from looseleaf.planner.step_timer import TimedStep, summaries

_USUAL = Cooling(10, 0.04, 0.003)
_COOLINGS: dict[str, tuple[float, ...]] = {
    "steps": (2, 3, 4, 6, 8, 10, 14, 20, 32),
    "seconds": (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.16, 0.32),
    "kept": (0.0, 0.002, 0.003, 0.004, 0.006, 0.01),
}
_ENOUGH_STEPS = 2000
"""To tell which `Cooling` is best."""

_NUM_FITS = 12
_NUM_ROUGH_FITS = 4
_MOST_FOLDS = 5
_FAR_OFF = 0.3
"""A relative error from which on it counts for less. Steps that other guests of a machine slow down
by a tenth belong to what every answer takes, since it takes a hundred steps; a step that was
interrupted does not."""


class Residuals(NamedTuple):
    """Of steps of loads that were left out of the fit: `median` and `p95` are of the errors without
    their sign, `total` is what all these steps take together, each against what was measured."""

    num_steps: int
    median: float
    p95: float
    total: float


class Observation(NamedTuple):
    """`features` are what the coefficients multiply, `load` is what it was part of."""

    features: tuple[float, ...]
    seconds: float
    load: int
    kind: str


class Fitted(NamedTuple):
    """`residuals` by kind, as `Residuals` has them."""

    coefficients: tuple[float, ...]
    residuals: dict[str, dict[str, Any]]


def calibrate(
    steps: Sequence[TimedStep], machine: str, besides: Sequence[float] = ()
) -> CalibratedModel:
    """The model that meets these steps best, and how well; they are of one engine, one after the
    other. `besides` are `StepTimer`'s: `measured["request_seconds"]` is the one in the middle."""
    cooling = _best_cooling(steps)
    fitted = fit(
        [
            Observation(tuple(features(summary)), step.seconds, step.load, step.kind)
            for step, summary in zip(steps, summaries(steps, cooling), strict=True)
        ]
    )
    return CalibratedModel(
        coefficients=fitted.coefficients,
        measured={
            "machine": machine,
            "num_steps": len(steps),
            "residuals": fitted.residuals,
            "request_seconds": max(0.0, median(besides)) if besides else 0.0,
        },
        cooling=cooling,
    )


def _best_cooling(steps: Sequence[TimedStep]) -> Cooling:
    """The one with which some of the steps are met best, looked for along one number at a time."""
    every = max(1, len(steps) // _ENOUGH_STEPS)
    seconds = np.array([step.seconds for step in steps[::every]])

    @cache
    def miss(cooling: Cooling) -> float:
        found = islice(summaries(steps, cooling), None, None, every)
        matrix = np.array([features(summary) for summary in found])
        solution = _fit(matrix, seconds, _NUM_ROUGH_FITS)
        errors = np.abs(seconds / np.maximum(matrix @ solution, 1e-9) - 1)
        far = _FAR_OFF * (2 * errors - _FAR_OFF)  # Huber's
        return float(np.where(errors < _FAR_OFF, errors**2, far).sum())

    best, before = _USUAL, None
    while best != before:
        before = best
        for name, values in _COOLINGS.items():
            best = min((best._replace(**{name: value}) for value in values), key=miss)
    return best


def fit(observed: Sequence[Observation]) -> Fitted:
    """The coefficients that meet these best, by their relative errors, and how well they meet each
    kind where its load is left out of the fit."""
    matrix = np.array([one.features for one in observed])
    seconds = np.array([one.seconds for one in observed])
    loads = np.unique([one.load for one in observed], return_inverse=True)[1]
    folds = min(_MOST_FOLDS, int(loads.max()) + 1)
    predicted = np.zeros(len(observed))
    for fold in range(folds if folds > 1 else 0):
        held = loads % folds == fold
        predicted[held] = matrix[held] @ _fit(matrix[~held], seconds[~held])
    residuals = {}
    for kind in ("prefill", "mixed", "decode"):
        chosen = [i for i, one in enumerate(observed) if one.kind == kind]
        if chosen and folds > 1:
            residuals[kind] = _residuals(predicted[chosen], seconds[chosen])._asdict()
    return Fitted(tuple(_fit(matrix, seconds).tolist()), residuals)


def _residuals(predicted: NDArray[np.float64], seconds: NDArray[np.float64]) -> Residuals:
    errors = np.abs(predicted / seconds - 1)
    total = float(predicted.sum() / seconds.sum() - 1)
    return Residuals(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.95)), total)


def _fit(
    observed: NDArray[np.float64], seconds: NDArray[np.float64], num_fits: int = _NUM_FITS
) -> NDArray[np.float64]:
    """Least squares of the errors relative to what is predicted, where large ones count no more
    than in proportion (Huber, 1964).

    So it is about the mean of steps of a kind, which whole runs and long answers take; only steps
    that were interrupted, which are far off, pull it towards their median.
    """
    predicted = seconds
    solution = np.zeros(observed.shape[1])
    for _ in range(num_fits):
        relative = observed / predicted[:, None]
        wanted = seconds / predicted
        errors = np.abs(wanted - 1)
        weights = np.sqrt(np.minimum(1, _FAR_OFF / np.maximum(errors, 1e-9)))
        scale = np.maximum(relative.max(axis=0), 1e-300)
        matrix = relative / scale
        solution = _non_negative(matrix * weights[:, None], wanted * weights) / scale
        predicted = np.maximum(observed @ solution, 1e-9)
    found: NDArray[np.float64] = solution
    return found


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
