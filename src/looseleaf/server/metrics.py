"""Metrics under vLLM's names, so that dashboards and autoscalers made for it work as they are.

Whatever goes wrong in here is logged and never reaches a request.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from prometheus_client import CollectorRegistry, Counter, generate_latest

from looseleaf.core.request import FinishReason
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.service import EngineDeadError, EngineService
from looseleaf.server.engine_figures import read_figures
from looseleaf.server.engine_metrics import EngineCollector
from looseleaf.server.families import LABELS, Families
from looseleaf.server.request_histograms import RequestHistograms

P = ParamSpec("P")

logger = logging.getLogger(__name__)

SCRAPE_SECONDS = 0.5
"""How long a scrape waits for the end of a step, before it gives the figures it has."""


def _never_raises(
    method: Callable[Concatenate["Metrics", P], None],
) -> Callable[Concatenate["Metrics", P], None]:
    @wraps(method)
    def guarded(self: "Metrics", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            if method.__name__ not in self._failed:
                self._failed.add(method.__name__)
                logger.exception("metrics: %s failed; logged once", method.__name__)

    return guarded


class Metrics:
    """The metrics of one server, in a registry of their own. With `legacy_names` they are also told
    under names that vLLM had before.

    Samples are counted, not HTTP requests: one with `n` of 3 starts three, and each of them ends
    once, as stop, length, abort or error.
    """

    def __init__(self, model_name: str, memory: MemoryPlan, *, legacy_names: bool = False) -> None:
        families = Families(model_name)
        self.registry = CollectorRegistry()
        self.engine = EngineCollector(families, memory, legacy_names=legacy_names)
        self.registry.register(self.engine)
        self._histograms = RequestHistograms(
            families, memory.max_model_len, legacy_names=legacy_names
        )
        self.registry.register(self._histograms)
        self._reading: asyncio.Task[None] | None = None
        self._failed: set[str] = set()
        self._labels = families.labels
        self._started = self._counter("looseleaf_requests_started", "Samples asked for")
        ended = Counter(
            "vllm:request_success",
            "Samples that ended, by reason",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._ended = {reason: ended.labels(*self._labels, reason.value) for reason in FinishReason}
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens")
        self._cached_tokens = self._counter("vllm:prompt_tokens_cached", "Prompt tokens reused")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated")
        self._answers = Counter(
            "http_requests",
            "HTTP requests, by method, route and kind of status",
            ("method", "handler", "status"),
            registry=self.registry,
        )

    @_never_raises
    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request, whatever of it."""
        self._answers.labels(method, handler, f"{status // 100}xx").inc()

    @_never_raises
    def started(self, num_samples: int, max_tokens: int) -> None:
        """A request, each of whose samples may have so many tokens."""
        self._started.inc(num_samples)
        self._histograms.num_samples.add(num_samples)
        self._histograms.max_tokens.add(max_tokens)

    @_never_raises
    def prompt_done(
        self, num_tokens: int, num_cached: int, queued: float | None, computed: float | None
    ) -> None:
        """Once for each prompt, when the first token has come; the times are in seconds."""
        self._prompt_tokens.inc(num_tokens)
        self._cached_tokens.inc(num_cached)
        self._histograms.prompt_tokens.add(num_tokens)
        self._histograms.computed_tokens.add(num_tokens - num_cached)
        if queued is not None:
            self._histograms.queue.add(queued)
        if computed is not None:
            self._histograms.prefill.add(computed)

    @_never_raises
    def first_token(self, seconds: float) -> None:
        self._histograms.ttft.add(seconds)
        self._generation_tokens.inc()

    @_never_raises
    def next_tokens(self, seconds: float, num_tokens: int) -> None:
        """So many, each of which took so long."""
        self._histograms.itl.add(seconds, num_tokens)
        self._generation_tokens.inc(num_tokens)

    @_never_raises
    def ended(
        self,
        reason: FinishReason,
        num_tokens: int,
        seconds: float,
        running: float | None,
        decoding: float | None,
    ) -> None:
        """`seconds` since arrival; `running` of them since the first step, if there was one, and
        `decoding` since the first token."""
        self._ended[reason].inc()
        self._histograms.output_tokens.add(num_tokens)
        self._histograms.e2e.add(seconds)
        if running is not None:
            self._histograms.inference.add(running)
        if decoding is not None:
            self._histograms.decode.add(decoding)
            if num_tokens > 1:
                self._histograms.tpot.add(decoding / (num_tokens - 1))

    @_never_raises
    def all_ended(self, longest: int, num_preemptions: int) -> None:
        """All samples of a request have: the longest had so many tokens."""
        self._histograms.longest_output.add(longest)
        self._histograms.preemptions.add(num_preemptions)

    async def scrape(self, service: EngineService) -> bytes:
        """Everything in Prometheus' text format."""
        await self.refresh(service)
        return generate_latest(self.registry)

    async def refresh(self, service: EngineService) -> None:
        """Ask for the engine's figures; those that come too late are there for the next scrape."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(service))
        await asyncio.wait({self._reading}, timeout=SCRAPE_SECONDS)

    async def _read(self, service: EngineService) -> None:
        try:
            self.engine.figures = await service.call(
                lambda engine: read_figures(engine, service.meter)
            )
        except EngineDeadError:
            pass  # the last figures stay; who scrapes sees on /health that they do
        except Exception as error:
            logger.warning("metrics: no fresh figures of the engine: %r", error)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(*self._labels)
