"""A cost model from steps that were timed on a machine, and the file that it is kept in.

    seconds = a step + tokens and rows of logits, each by pieces of straight lines
            + a step with chunks + chunks + pairs of query and key of chunks
            + context of decoding sequences + what of it is read, which they may share
            + how cold the caches are, of steps with chunks, of others, and times what is read
            + a pause before

No coefficient is below zero, so more work of a kind never takes less time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError
from looseleaf.planner.cooling import Cooling
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize

KNOTS = (0, 1, 4, 16, 64, 256, 1024)
"""Between two of them, one more token takes so much more; beyond the last it goes on. With more of
them each is told by few steps, and follows their noise."""

NOISY = 0.1
"""With a larger error in the middle, something else ran on the machine meanwhile."""

_FORMAT = "looseleaf-calibration-6"

_LONGEST_PAUSE = 10.0


def features(step: StepSummary) -> list[float]:
    """What the coefficients multiply."""
    context_read = float(step.decode_context - step.shared_context)
    return [
        1.0,
        *_pieces(step.num_tokens),
        float(step.num_rows > 0),
        *_pieces(step.num_rows),
        float(step.pairs),
        float(step.decode_context),
        context_read,
        float(step.chunk > 0),
        float(step.num_chunks),
        0.0 if step.chunk else step.cold,
        step.cold if step.chunk else 0.0,
        step.cold * context_read,
        # Threads and clocks wake up the slower, the longer nothing has run: in proportion for up to
        # a second, then less and less.
        math.log1p(min(step.idle, _LONGEST_PAUSE)),
    ]


def _pieces(number: int) -> list[float]:
    """How much of it lies after each knot, up to the next one."""
    ends = (*KNOTS[1:], max(number, KNOTS[-1]))
    return [
        float(min(max(number - low, 0), high - low)) for low, high in zip(KNOTS, ends, strict=True)
    ]


NUM_INNER = 7
"""The last features, which only who sees an engine's steps can tell from the others."""

NUM_FEATURES = len(features(StepSummary(0, 0, 0, 0, 0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedModel:
    """`measured` says what was timed and how well it is met: see `calibrate.Residuals`. Without
    `cooling`, nothing is known of what caches do."""

    coefficients: tuple[float, ...]
    measured: Mapping[str, Any]
    cooling: Cooling | None = None

    def __post_init__(self) -> None:
        good = all(isinstance(c, int | float) and 0 <= c < 1e6 for c in self.coefficients)
        if len(self.coefficients) != NUM_FEATURES or not good:
            raise ConfigError(
                f"a calibration has {NUM_FEATURES} coefficients, none below zero: calibrate again"
            )
        besides = self.measured.get("request_seconds", 0.0)
        if not (isinstance(besides, int | float) and 0 <= besides < 1e6):
            raise ConfigError(
                f"request_seconds is {str(besides)[:40]}, but it must be a number of seconds, not "
                "below 0: calibrate again"
            )
        if self.cooling is not None:
            steps, seconds, kept = self.cooling
            if not (steps >= 1 and seconds > 0 and kept >= 0):
                raise ConfigError(
                    f"cooling is {[steps, seconds, kept]}, but it must be at least 1 step, above "
                    "0 s, and not below 0 s: calibrate again"
                )

    @property
    def request_seconds(self) -> float:
        """That each request takes besides its steps."""
        return float(self.measured.get("request_seconds", 0.0))

    @property
    def name(self) -> str:
        return f"calibrated on {self.measured.get('machine', 'a machine that is not named')}"

    @property
    def known_error(self) -> str:
        errors = self.measured.get("residuals") or {}
        return ", ".join(
            f"{kind} steps {one['median']:.1%} in the middle, {one['p95']:.1%} in 19 of 20"
            for kind, one in errors.items()
        )

    @property
    def is_noisy(self) -> bool:
        """Whether it was measured on a machine that had other things to do."""
        return any(one["median"] > NOISY for one in (self.measured.get("residuals") or {}).values())

    def seconds(self, parts: Sequence[StepPart]) -> float:
        """Of one step over these sequences; 0 for none."""
        return self.seconds_of(summarize(parts)) if parts else 0.0

    def seconds_of(self, step: StepSummary) -> float:
        """Of a step with at least one sequence."""
        return sum(c * x for c, x in zip(self.coefficients, features(step), strict=True) if c)

    def save(self, path: Path) -> None:
        """Write it as JSON; raises OSError."""
        content = {
            "format": _FORMAT,
            "knots": KNOTS,
            "coefficients": self.coefficients,
            "cooling": self.cooling,
            "measured": self.measured,
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_calibration(path: Path) -> CalibratedModel:
    """What `save` has written; raises ConfigError for anything else."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ConfigError(f"{path} is no calibration of this version: calibrate again")
    coefficients, measured = content.get("coefficients"), content.get("measured")
    same_knots = content.get("knots") == list(KNOTS)
    if not (isinstance(coefficients, list) and isinstance(measured, dict) and same_knots):
        raise ConfigError(f"{path} is damaged: calibrate again")
    return CalibratedModel(
        coefficients=tuple(coefficients), measured=measured, cooling=_cooling(content, path)
    )


def _cooling(content: Mapping[str, Any], path: Path) -> Cooling | None:
    found = content.get("cooling")
    if found is None:
        return None
    if not (
        isinstance(found, list)
        and len(found) == len(Cooling._fields)
        and all(isinstance(number, int | float) for number in found)
    ):
        raise ConfigError(f"{path} is damaged: calibrate again")
    return Cooling(*found)
