"""The runs that figures share, each made once."""

from collections.abc import Callable
from typing import TypeVar

from looseleaf.planner.paper.runs import Full, Served, backlog, serve, sustained
from looseleaf.planner.paper.setups import BLOCK_SIZE, LLAMA_13B, OPT_13B, VLLM, Setup, System
from looseleaf.planner.paper.workloads import chats, draw, translations

T = TypeVar("T")

LATENCY = 0.2
"""Seconds a token, in which rates are compared: above what any system needs while nobody waits, and
below what waiting soon comes to."""

_REQUESTS = {"ShareGPT": 900, "Alpaca": 2400}
"""Of a backlog: several times what fits."""

_SECONDS = {"ShareGPT": 160.0, "Alpaca": 16.0}
"""That requests come for at a rate: over ten times what an answer takes."""

_BETWEEN = {"ShareGPT": 0.5, "Alpaca": 0.1}
"""Seconds between two looks at the memory."""


class Trials:
    """`quick` ones are several times shorter, and so less exact. The same `seed` has the same
    results."""

    def __init__(self, seed: int = 0, *, quick: bool = False) -> None:
        self.seed = seed
        self.quick = quick
        self._known: dict[object, object] = {}

    def full(
        self,
        name: str,
        system: System,
        setup: Setup = OPT_13B,
        kind: str = "samples",
        width: int = 1,
    ) -> Full:
        """With more work than it can take, of so many samples or beams a request."""

        def run() -> Full:
            num = _REQUESTS[name] // (2 if self.quick else 1) // width
            if kind == "beams":
                num //= 2  # beams cost far more to replay
            samples = width if kind == "samples" else 1
            return backlog(
                setup,
                system,
                draw(name, num, self.seed, samples),
                beam_width=width if kind == "beams" else 1,
                seconds_between=_BETWEEN[name],
            )

        return self._once(("full", name, system, setup.name, kind, width), run)

    def shared(self, name: str, kind: str, width: int) -> Full:
        """vLLM, for what samples and beams share."""
        if kind == "samples":
            return self.full(name, VLLM, width=width)

        def run() -> Full:
            num = {"ShareGPT": 9, "Alpaca": 60}[name] // (3 if self.quick else 1)
            requests = draw(name, num, self.seed)
            return backlog(OPT_13B, VLLM, requests, beam_width=width, whole=True)

        return self._once(("shared", name, width), run)

    def served(
        self,
        name: str,
        system: System,
        rate: float,
        setup: Setup = OPT_13B,
        block_size: int = BLOCK_SIZE,
    ) -> Served:
        seconds = _SECONDS[name] / (3 if self.quick else 1)
        requests = draw(name, max(50, round(rate * seconds)), self.seed)
        return serve(setup, system, requests, rate, seed=self.seed, block_size=block_size)

    def sustained(
        self, name: str, system: System, setup: Setup = OPT_13B
    ) -> tuple[float, list[Served]]:
        """The rate at which the mean normalised latency is `LATENCY`, and the rates tried."""

        def run() -> tuple[float, list[Served]]:
            around = self.full(name, system, setup).rate
            return sustained(lambda rate: self.served(name, system, rate, setup), around, LATENCY)

        return self._once(("sustained", name, system, setup.name), run)

    def translating(self, system: System, prefix: int) -> Full:
        num = 800 // (4 if self.quick else 1)
        requests = translations(num, self.seed, prefix)
        return backlog(LLAMA_13B, system, requests, hashed_tokens=prefix)

    def chatting(self, system: System) -> Full:
        return backlog(OPT_13B, system, chats(240 // (3 if self.quick else 1), self.seed))

    def _once(self, key: object, run: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = run()
        return self._known[key]  # type: ignore[return-value]
