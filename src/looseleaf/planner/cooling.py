"""What a step finds in the processor's caches, which depends on the steps and pauses before it.

A model's weights are read in every step. One that decodes takes a few milliseconds, so what lies in
the caches stays there, and within some tens of steps they hold nearly all that they can; meanwhile
a step may become half as long. In a long step, and in a pause, other programs take their place.
"""

import math
from typing import NamedTuple


class Cooling(NamedTuple):
    """A step brings one part of `steps` of what is missing into the caches. What it has read is
    safe for `kept` seconds; from then on, in `seconds` all but a part of e of it is lost."""

    steps: float
    seconds: float
    kept: float = 0.0


class Caches:
    """`cold` is the share of what they can hold that is not there: 1 at the beginning."""

    def __init__(self, cooling: Cooling) -> None:
        self._cooling = cooling
        self.cold = 1.0

    def rest(self, seconds: float) -> None:
        """Nothing has been read for so long."""
        lost = max(0.0, seconds - self._cooling.kept) / self._cooling.seconds
        self.cold = 1 - (1 - self.cold) * math.exp(-lost)

    def step(self, seconds: float) -> None:
        """One has taken so long."""
        self.cold *= 1 - 1 / self._cooling.steps
        self.rest(seconds)
