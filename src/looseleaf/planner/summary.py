"""What a replay comes to: speed, latencies, memory."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, NamedTuple

from looseleaf.core.counters import Counters
from looseleaf.core.request import FinishReason
from looseleaf.planner.amounts import seconds_text, share
from looseleaf.planner.replay import Outcome, Replayed


class Spread(NamedTuple):
    """Of some values; percentiles lie between two of them where they have to."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def spread(values: Iterable[float]) -> Spread | None:
    """None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    shares = (0.5, 0.9, 0.95, 0.99, 1.0)
    return Spread(sum(ordered) / len(ordered), *(quantile(ordered, q) for q in shares))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of at least one value, in order."""
    place = share * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Times are in seconds, rates per second, memory in blocks and shares of it.

    `duration` is from the first arrival to the last token, `busy` what steps took of it. `ttft` is
    from a request's arrival to its first token, `queue` to its first step, `e2e` to its end;
    `tpot` is the mean time between two tokens of one answer, of those that have two. Means of
    `running`, `waiting` and `kv_used` are over the time that steps took. Of the slots taken,
    `kv_filled` hold a token, and `kv_waste` never will: means of what was looked at now and then.
    `recomputed_tokens` are those that preempted requests had to compute again.
    """

    requests: int
    refused: int
    aborted: int
    prompt_tokens: int
    output_tokens: int
    duration: float
    busy: float
    steps: int
    requests_per_second: float
    output_tokens_per_second: float
    tokens_per_second: float
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    queue: Spread | None
    running_mean: float
    running_peak: int
    waiting_mean: float
    waiting_peak: int
    num_blocks: int
    block_size: int
    kv_used_mean: float
    kv_used_peak: float
    kv_filled: float | None
    kv_waste: float | None
    prefix_caching: bool
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    preempted_requests: int
    recomputed_tokens: int

    @property
    def hit_rate(self) -> float:
        """By tokens of prompts, over the whole replay, from an empty cache."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


def summarize(
    result: Replayed,
    counters: Counters,
    *,
    num_blocks: int,
    block_size: int,
    prefix_caching: bool = True,
) -> Summary:
    ended, steps = result.outcomes, result.steps
    complete = [o for o in ended if o.reason is not FinishReason.ABORT]
    start = min((o.arrival for o in ended), default=0.0)
    duration = max((o.finished for o in ended), default=0.0) - start
    busy = sum(steps.seconds)
    prompt = sum(o.num_prompt_tokens for o in ended)
    output = sum(o.num_output_tokens for o in ended)
    used = [num_blocks - available for available in steps.available]
    samples = [sample for sample in result.usage if sample.allocated]

    def rate(number: float) -> float:
        return number / duration if duration else 0.0

    def mean(values: Iterable[float]) -> float:
        weighted = sum(v * s for v, s in zip(values, steps.seconds, strict=True))
        return weighted / busy if busy else 0.0

    return Summary(
        requests=len(ended),
        refused=len(result.refused),
        aborted=len(ended) - len(complete),
        prompt_tokens=prompt,
        output_tokens=output,
        duration=duration,
        busy=busy,
        steps=len(steps),
        requests_per_second=rate(len(complete)),
        output_tokens_per_second=rate(output),
        tokens_per_second=rate(prompt + output),
        ttft=spread(first_token_times(ended)),
        tpot=spread(output_token_times(ended)),
        e2e=spread(o.finished - o.arrival for o in complete),
        queue=spread(o.scheduled - o.arrival for o in ended if o.scheduled is not None),
        running_mean=mean(steps.running),
        running_peak=max(steps.running, default=0),
        waiting_mean=mean(steps.waiting),
        waiting_peak=max(steps.waiting, default=0),
        num_blocks=num_blocks,
        block_size=block_size,
        kv_used_mean=mean(used) / num_blocks,
        kv_used_peak=max(used, default=0) / num_blocks,
        kv_filled=sum(s.physical for s in samples) / len(samples) if samples else None,
        kv_waste=sum(s.waste for s in samples) / len(samples) if samples else None,
        prefix_caching=prefix_caching,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        preemptions=counters.preemptions,
        preempted_requests=sum(o.num_preemptions > 0 for o in ended),
        recomputed_tokens=max(0, counters.computed_tokens - sum(map(_stored, ended))),
    )


def first_token_times(outcomes: Iterable[Outcome]) -> list[float]:
    """From arrivals to first tokens."""
    return [o.first_token - o.arrival for o in outcomes if o.first_token is not None]


def output_token_times(outcomes: Iterable[Outcome]) -> list[float]:
    """Between two tokens, on average of each answer that is complete and has two."""
    return [
        (o.finished - o.first_token) / (o.num_output_tokens - 1)
        for o in outcomes
        if o.reason is not FinishReason.ABORT
        and o.num_output_tokens > 1
        and o.first_token is not None
    ]


def _stored(outcome: Outcome) -> int:
    """Tokens that had to be computed once. The last of an answer never is."""
    prompt = outcome.num_prompt_tokens - outcome.num_cached_tokens if outcome.is_first else 0
    return prompt + max(0, outcome.num_output_tokens - 1)


def as_json(summary: Summary) -> dict[str, Any]:
    values = dataclasses.asdict(summary)
    for name in ("ttft", "tpot", "e2e", "queue"):
        found = getattr(summary, name)
        values[name] = None if found is None else found._asdict()
    return values | {"hit_rate": summary.hit_rate}


def as_text(summary: Summary) -> str:
    s = summary
    lines = [
        f"{s.requests} requests{_aborted(s)} in {seconds_text(s.duration)}: "
        f"{s.requests_per_second:.2f} requests/s, "
        f"{s.output_tokens_per_second:.0f} output tokens/s, {s.tokens_per_second:.0f} with the "
        f"prompts'; busy {share(s.busy / s.duration if s.duration else 0)} of the time",
        "",
        f"{'':22}{'mean':>9}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}{'max':>9}",
    ]
    for title, found in (
        ("time to first token", s.ttft),
        ("time per output token", s.tpot),
        ("whole answer", s.e2e),
        ("waiting for a seat", s.queue),
    ):
        if found is not None:
            lines.append(f"{title:22}" + "".join(f"{seconds_text(value):>9}" for value in found))
    waste = ""
    if s.kv_filled is not None and s.kv_waste is not None:
        waste = f"; {share(s.kv_filled)} of that filled, {share(s.kv_waste)} never to be"
    lines += [
        "",
        f"running   {s.running_mean:.1f} on average, at most {s.running_peak}",
        f"waiting   {s.waiting_mean:.1f} on average, at most {s.waiting_peak}",
        f"KV cache  {share(s.kv_used_mean)} of {s.num_blocks} blocks of {s.block_size} tokens on "
        f"average, at most {share(s.kv_used_peak)}{waste}",
        f"prefix    {_hits(s)}",
        f"preempted {s.preemptions} times, {s.preempted_requests} requests; "
        f"{s.recomputed_tokens} tokens computed again",
    ]
    return "\n".join(lines)


def _aborted(s: Summary) -> str:
    return f" ({s.aborted} given up)" if s.aborted else ""


def _hits(s: Summary) -> str:
    if not s.prefix_caching:
        return "no caching"
    return (
        f"{share(s.hit_rate)} of the prompt tokens found stored (whole replay, from an empty "
        f"cache of {s.num_blocks * s.block_size} tokens that running requests share)"
    )
