"""Metrics under vLLM's names, so that dashboards and autoscalers made for it work as they are.

Whatever goes wrong in here is logged and never reaches a request.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from looseleaf.core.request import FinishReason
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.service import EngineDeadError, EngineService
from looseleaf.server.engine_metrics import LABELS, EngineCollector, read_figures

P = ParamSpec("P")

logger = logging.getLogger(__name__)

SCRAPE_SECONDS = 0.5
"""How long a scrape waits for the end of a step, before it gives the figures it has."""

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)


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
    """The metrics of one server, in a registry of their own.

    Samples are counted, not HTTP requests: one with `n` of 3 starts three, and each of them ends
    once, as stop, length, abort or error.
    """

    def __init__(self, model_name: str, memory: MemoryPlan) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector(model_name, memory)
        self.registry.register(self.engine)
        self._reading: asyncio.Task[None] | None = None
        self._failed: set[str] = set()
        self._labels = (model_name, "0")
        tokens = _round_buckets(memory.max_model_len)
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
        self._ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token", TTFT_BUCKETS
        )
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a sample", ITL_BUCKETS
        )
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, by sample",
            ITL_BUCKETS,
        )
        self._e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the end", LATENCY_BUCKETS
        )
        self._queue = self._histogram(
            "vllm:request_queue_time_seconds", "From arrival to the first step", LATENCY_BUCKETS
        )
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds",
            "From the first step to the first token",
            LATENCY_BUCKETS,
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last", LATENCY_BUCKETS
        )
        self._prompt_size = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens by request", tokens
        )
        self._output_size = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated, by sample", tokens
        )
        self._n = self._histogram("vllm:request_params_n", "Samples by request", (1, 2, 5, 10, 20))

    @_never_raises
    def started(self, num_samples: int) -> None:
        self._started.inc(num_samples)
        self._n.observe(num_samples)

    @_never_raises
    def prompt_done(
        self, num_tokens: int, num_cached: int, queued: float | None, computed: float | None
    ) -> None:
        """Once for each prompt, when the first token has come; the times are in seconds."""
        self._prompt_tokens.inc(num_tokens)
        self._cached_tokens.inc(num_cached)
        self._prompt_size.observe(num_tokens)
        if queued is not None:
            self._queue.observe(queued)
        if computed is not None:
            self._prefill.observe(computed)

    @_never_raises
    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    @_never_raises
    def next_token(self, seconds: float) -> None:
        self._itl.observe(seconds)

    @_never_raises
    def generated(self, num_tokens: int) -> None:
        self._generation_tokens.inc(num_tokens)

    @_never_raises
    def ended(
        self, reason: FinishReason, num_tokens: int, seconds: float, decoding: float | None
    ) -> None:
        """`seconds` since arrival; `decoding` of them since the first token, if there was one."""
        self._ended[reason].inc()
        self._output_size.observe(num_tokens)
        self._e2e.observe(seconds)
        if decoding is not None:
            self._decode.observe(decoding)
            if num_tokens > 1:
                self._tpot.observe(decoding / (num_tokens - 1))

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
            self.engine.figures = await service.call(read_figures)
        except EngineDeadError:
            pass  # the last figures stay; who scrapes sees on /health that they do
        except Exception as error:
            logger.warning("metrics: no fresh figures of the engine: %r", error)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, LABELS, buckets=buckets, registry=self.registry)
        return family.labels(*self._labels)


def _round_buckets(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `most`."""
    buckets = [
        mantissa * 10**exponent for exponent in range(len(str(most))) for mantissa in (1, 2, 5)
    ]
    return tuple(bucket for bucket in buckets if bucket <= most)
