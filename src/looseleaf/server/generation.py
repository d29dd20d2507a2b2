"""The prompts of one HTTP request on their way through the engine."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.groups import Delta, Group, Sample
from looseleaf.engine.service import EngineDeadError
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.call import current
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import ApiError, out_of_time, unavailable
from looseleaf.server.figures import MissFigures, RequestFigures, Timings
from looseleaf.server.protocol import PromptTokensDetails, Usage
from looseleaf.server.tracing import RequestSpan, Tracing


@dataclass(slots=True)
class _Meter:
    """Reports one group's times and tokens."""

    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


class Generation:
    """One group for each prompt. Choices are numbered over prompts and samples: `n` for the first
    prompt, then `n` for the second, and so on.

    Must be closed, whatever happens: that ends what still runs and counts it.
    """

    def __init__(
        self,
        context: ServerContext,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        priority: int = 0,
        extra_keys: ExtraKeys = (),
        continues_text: bool = False,
        beams: BeamSearchParams | None = None,
        timeout: float | None = None,
    ) -> None:
        """Submits everything or, if any of it can never fit, nothing. Raises as `submit` does, and
        ApiError 429 if there is no room for it in the queue. After `timeout` seconds since the
        request came it ends with an ApiError 504.

        With `beams` the samples of a group are a search's answers, which come all at the end.
        """
        call = current()
        extra_keys = context.cache_keys(extra_keys)
        end = call.end(timeout)
        if call.tenant.limits.priority is not None:
            priority = max(priority, call.tenant.limits.priority)
        context.gate.admit(call, list(prompts))
        self.groups: list[Group] = []
        self.cancelled = False
        self.num_samples = params.n
        self._service = context.service
        self._metrics = context.metrics
        self._gate = context.gate
        self._tenant = call.tenant
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._answers = context.answers
        self._answer_id: str | None = None
        self._tracing = context.tracing
        self._trace_headers = call.trace_headers
        self._model = context.model_names[0]
        try:
            for prompt in prompts:
                self.groups.append(
                    self._service.submit(
                        prompt,
                        params,
                        priority=priority,
                        extra_keys=extra_keys,
                        continues_text=continues_text,
                        beams=beams,
                        tenant=call.tenant.label,
                        weight=call.tenant.limits.weight,
                    )
                )
        except LooseleafError:
            for group in self.groups:
                self._service.abort(group)
            raise
        call.told = self._told
        self._meters = [_Meter() for _ in self.groups]
        for group in self.groups:
            self._metrics.started(len(group.samples), group.max_tokens)
            if beams is None:
                self._gate.queued(group)
        if end is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(end.time, self._expire, end.seconds)

    def known_as(self, answer_id: str) -> None:
        """Until it is closed, it can be cancelled by that id."""
        self._answer_id = answer_id
        self._answers.add(answer_id, self)

    def cancel(self) -> None:
        """End early what still runs: whoever reads this gets what there is, as aborted."""
        self.cancelled = True
        for group in self.groups:
            self._service.cancel(group)

    @property
    def samples(self) -> list[Sample]:
        """In the order of the choices."""
        return list(chain.from_iterable(group.samples for group in self.groups))

    @property
    def has_begun(self) -> bool:
        """Whether anything of it has been in a step."""
        return any(group.request.first_scheduled_time is not None for group in self.groups)

    def unavailable(self) -> ApiError:
        """What a client is told of an EngineDeadError."""
        return unavailable(self._service)

    def usage(self) -> Usage:
        """So far; cached tokens are known once the first token has come."""
        prompt = sum(group.num_prompt_tokens for group in self.groups)
        output = sum(group.num_output_tokens for group in self.groups)
        cached = sum(group.num_cached_tokens for group in self.groups)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    def timings(self) -> Timings:
        """So far. Of several prompts, the tokens of all and the longest times."""
        usage = self.usage()
        prompt_ms = predicted_ms = 0.0
        for group, meter in zip(self.groups, self._meters, strict=True):
            scheduled = group.request.first_scheduled_time
            if scheduled is not None and meter.first:
                first, last = _first_token(group, meter), max(meter.last.values())
                prompt_ms = max(prompt_ms, 1000 * (first - scheduled))
                predicted_ms = max(predicted_ms, 1000 * (last - first))
        cached = usage.prompt_tokens_details.cached_tokens
        computed, predicted = usage.prompt_tokens - cached, usage.completion_tokens
        return Timings(
            cache_n=cached,
            prompt_n=computed,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / computed,
            prompt_per_second=1000 * computed / prompt_ms if prompt_ms else 0.0,
            predicted_n=predicted,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / predicted if predicted else 0.0,
            predicted_per_second=1000 * predicted / predicted_ms if predicted_ms else 0.0,
        )

    def figures(self) -> RequestFigures:
        """So far."""
        usage = self.usage()
        now = self._service.clock()
        queue = prefill = decode = total = 0.0
        for group, meter in zip(self.groups, self._meters, strict=True):
            arrival, scheduled = group.request.arrival_time, group.request.first_scheduled_time
            last = max(meter.last.values(), default=now)
            total = max(total, last - arrival)
            queue = max(queue, (now if scheduled is None else scheduled) - arrival)
            if scheduled is not None:
                first = _first_token(group, meter) if meter.first else now
                prefill = max(prefill, first - scheduled)
                decode = max(decode, last - first)
        misses = [group.prefix_miss for group in self.groups]
        return RequestFigures(
            queue_ms=_milliseconds(queue),
            prefill_ms=_milliseconds(prefill),
            decode_ms=_milliseconds(decode),
            total_ms=_milliseconds(total),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
            completion_tokens=usage.completion_tokens,
            preemptions=sum(group.num_preemptions for group in self.groups),
            prefix_misses=[
                miss
                and MissFigures(
                    reason=miss.reason.value, position=miss.position, tokens=miss.num_tokens
                )
                for miss in misses
            ],
        )

    def _told(self) -> dict[str, Any]:
        ends = [sample.finish_reason for sample in self.samples]
        found: dict[str, Any] = msgspec.to_builtins(self.figures())
        return found | {
            "answer_id": self._answer_id,
            "finish_reasons": [(reason or FinishReason.ABORT).value for reason in ends],
        }

    def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """All news, with the index of the choice, as it comes.

        Raises EngineDeadError, also where the engine ends a sample because it is being stopped.
        """
        return self._numbered(0) if len(self.groups) == 1 else self._merged()

    async def _merged(self) -> AsyncGenerator[tuple[int, Delta], None]:
        queue: asyncio.Queue[tuple[int, Delta] | BaseException | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(i, queue)) for i in range(len(self.groups))]
        try:
            running = len(tasks)
            while running:
                news = await queue.get()
                if news is None:
                    running -= 1
                elif isinstance(news, BaseException):
                    raise news
                else:
                    yield news
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """To the end, for who wants the whole answer at once."""
        async with aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass

    def close(self) -> None:
        """End what still runs, at once. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._closed = True
            usage = self.usage()
            cached = usage.prompt_tokens_details.cached_tokens
            self._gate.charge(self._tenant, usage.total_tokens - cached)
            if self._tracing is not None:
                self._trace(self._tracing)
        if self._answer_id is not None:
            self._answers.remove(self._answer_id, self)
        for group, meter in zip(self.groups, self._meters, strict=True):
            self._service.abort(group)
            self._gate.gone(group)
            for sample in group.samples:
                self._end(group, meter, sample, sample.finish_reason or self._unfinished)

    @property
    def _unfinished(self) -> FinishReason:
        """How a sample ends that the engine does not finish."""
        return FinishReason.ABORT if self._service.failure is None else FinishReason.ERROR

    def _trace(self, tracing: Tracing) -> None:
        for number, (group, meter) in enumerate(zip(self.groups, self._meters, strict=True)):
            request_id = self._answer_id or group.request_id
            tracing.request(
                partial(
                    RequestSpan,
                    group,
                    request_id=f"{request_id}-{number}" if number else request_id,
                    model=self._model,
                    first=min(meter.first.values(), default=None),
                    last=max(meter.last.values(), default=None),
                    now=self._service.clock(),
                    unfinished=self._unfinished,
                    headers=self._trace_headers,
                )
            )

    def _expire(self, seconds: float) -> None:
        for group in self.groups:
            self._service.fail(group, out_of_time(seconds))

    async def _pump(
        self, number: int, queue: "asyncio.Queue[tuple[int, Delta] | BaseException | None]"
    ) -> None:
        try:
            async with aclosing(self._numbered(number)) as numbered:
                async for item in numbered:
                    queue.put_nowait(item)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    async def _numbered(self, number: int) -> AsyncGenerator[tuple[int, Delta], None]:
        group, meter = self.groups[number], self._meters[number]
        first_index = number * self.num_samples
        stream = self._service.stream(group)
        try:
            async for delta in stream:
                self._observe(group, meter, delta)
                if delta.finish_reason is FinishReason.ABORT and not self.cancelled:
                    raise EngineDeadError("the engine is being stopped")
                yield first_index + delta.index, delta
        finally:
            await stream.aclose()

    def _observe(self, group: Group, meter: _Meter, delta: Delta) -> None:
        now, arrival = self._service.clock(), group.request.arrival_time
        if not meter.first:
            scheduled = group.request.first_scheduled_time
            self._metrics.prompt_done(
                group.num_prompt_tokens,
                group.num_cached_tokens,
                None if scheduled is None else scheduled - arrival,
                None if scheduled is None else now - scheduled,
            )
        if delta.index not in meter.first:
            meter.first[delta.index] = now
            if delta.token_ids:
                self._metrics.first_token(now - arrival)
            if len(delta.token_ids) > 1:  # they came together
                self._metrics.next_tokens(0.0, len(delta.token_ids) - 1)
        elif delta.token_ids:
            num_tokens = len(delta.token_ids)
            self._metrics.next_tokens((now - meter.last[delta.index]) / num_tokens, num_tokens)
        meter.last[delta.index] = now
        if delta.finish_reason is not None:
            self._end(group, meter, group.samples[delta.index], delta.finish_reason)

    def _end(self, group: Group, meter: _Meter, sample: Sample, reason: FinishReason) -> None:
        if sample.index in meter.ended:
            return
        meter.ended.add(sample.index)
        now, first = self._service.clock(), meter.first.get(sample.index)
        scheduled = group.request.first_scheduled_time
        self._metrics.ended(
            reason,
            len(sample.token_ids),
            now - group.request.arrival_time,
            None if scheduled is None else now - scheduled,
            None if first is None else now - first,
        )
        if len(meter.ended) == len(group.samples):
            self._metrics.all_ended(
                max(len(sample.token_ids) for sample in group.samples), group.num_preemptions
            )


def _first_token(group: Group, meter: _Meter) -> float:
    """When the first token was there: a reader that was behind has got it with later ones."""
    made = [m.first_token_time for m in group.members if m.first_token_time is not None]
    return min([*meter.first.values(), *made])


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
