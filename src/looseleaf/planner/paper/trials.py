"""The runs that figures share, each made once."""

from collections.abc import Callable
from typing import TypeVar

from looseleaf.planner.paper.runs import Full, Served, backlog, serve
from looseleaf.planner.paper.setups import (
    BLOCK_SIZE,
    LLAMA_13B,
    NO_OVERHEAD,
    OPT_13B,
    VLLM,
    Overhead,
    Setup,
    System,
)
from looseleaf.planner.paper.workloads import chats, draw, translations

T = TypeVar("T")

SLOW_STEPS = Overhead(sequence=0.0004)
"""As a test of what it would change. It is fitted to Fig. 13: with it, about as many requests run
at the paper's rates as in the paper."""

_REQUESTS = {"ShareGPT": 600, "Alpaca": 2400}
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
        overhead: Overhead = NO_OVERHEAD,
    ) -> Full:
        """With more work than it can take, of so many samples or beams a request."""

        def run() -> Full:
            num = _REQUESTS[name] // (2 if self.quick else 1) // width
            if kind == "beams":
                num //= 2  # they cost far more to replay
            samples = width if kind == "samples" else 1
            return backlog(
                setup,
                system,
                draw(name, num, self.seed, samples),
                beam_width=width if kind == "beams" else 1,
                seconds_between=_BETWEEN[name],
                overhead=overhead,
            )

        return self._once(("full", name, system, setup.name, kind, width, overhead), run)

    def shared(self, name: str, kind: str, width: int, every: int = 1) -> Full:
        """vLLM, for what samples and beams share. Beams oust each other in every `every`-th step
        of the recorded ones only."""
        if kind == "samples":
            return self.full(name, VLLM, width=width)

        def run() -> Full:
            num = {"ShareGPT": 24, "Alpaca": 144}[name] // (6 if self.quick else 1)
            requests = draw(name, num, self.seed)
            return backlog(OPT_13B, VLLM, requests, beam_width=width, whole=True, every=every)

        return self._once(("shared", name, width, every), run)

    def served(
        self,
        name: str,
        system: System,
        rate: float,
        setup: Setup = OPT_13B,
        block_size: int = BLOCK_SIZE,
        overhead: Overhead = NO_OVERHEAD,
    ) -> Served:
        """At a rate, three times as long with an overhead, for then answers take longer."""
        seconds = _SECONDS[name] / (3 if self.quick else 1) * (3 if any(overhead) else 1)
        requests = draw(name, max(50, round(rate * seconds)), self.seed)
        return serve(
            setup,
            system,
            requests,
            rate,
            seed=self.seed,
            block_size=block_size,
            overhead=overhead,
        )

    def translating(self, system: System, prefix: int, lengths: str = "WMT16") -> Full:
        num = 2000 // (2 if self.quick else 1)
        requests = translations(num, self.seed, prefix, lengths)
        return backlog(LLAMA_13B, system, requests, hashed_tokens=prefix)

    def chatting(
        self, system: System, rounds: int | None = None, overhead: Overhead = NO_OVERHEAD
    ) -> Full:
        requests = chats(240 // (3 if self.quick else 1), self.seed, rounds)
        return backlog(OPT_13B, system, requests, overhead=overhead)

    def _once(self, key: object, run: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = run()
        return self._known[key]  # type: ignore[return-value]
