"""What is compared: the workloads of `looseleaf bench`, put to peers, and the start."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from looseleaf.bench.workloads import WORKLOADS, Workload
from peers.protocol import Answer, Job, Request

Figures = Mapping[str, Any]


class Measure(NamedTuple):
    """A figure that decides who is better: its name in the results, and how tables call it."""

    key: str
    label: str
    higher_is_better: bool = True

    def times_better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.higher_is_better else theirs / ours


PREFILL = Measure("prefill_tokens_per_s", "prefill tok/s")
DECODE = Measure("decode_tokens_per_s", "decode tok/s")
OUTPUT = Measure("output_tokens_per_s", "output tok/s")
WALL = Measure("wall_s", "seconds", higher_is_better=False)
FIRST_TOKEN = Measure("first_token_s", "first token, s", higher_is_better=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload, or the start if there is none, and what of it is compared.

    `warmed`: before the clock starts, peers (not ours) are asked for the beginning that all prompts
    have in common.
    """

    name: str
    description: str
    measures: Sequence[Measure]
    workload: Workload | None = None
    warmed: bool = False


def _task(name: str, *measures: Measure) -> Task:
    workload = WORKLOADS[name]
    return Task(name=name, description=workload.description, measures=measures, workload=workload)


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _task("single", PREFILL, DECODE),
            _task("batch", OUTPUT),
            _task("shared-prefix", WALL),
            Task(
                name="shared-prefix-warmed",
                description="the same, but peers (not ours) have computed the common tokens before",
                measures=(WALL,),
                workload=WORKLOADS["shared-prefix"],
                warmed=True,
            ),
            _task("parallel-sampling", OUTPUT),
            _task("long-context", PREFILL, DECODE),
            Task(
                name="startup",
                description="from the start of a process to its first token",
                measures=(FIRST_TOKEN,),
            ),
        )
    }
)


def request(task: Task, *, model: str, threads: int, vocab_size: int) -> Request:
    """What a peer is asked for a task. The first job of a workload only warms up: the same with
    other tokens, so that nothing stored by it is of use to the second."""
    if task.workload is None:
        first = vocab_size // 2
        jobs = [Job(prompts=[list(range(first, first + 5))], max_tokens=1)]
    else:
        measured = _job(task.workload, vocab_size)
        prefix = measured.prompts[0][: task.workload.shared_tokens]
        others = Job(
            prompts=[_other_tokens(prompt, vocab_size) for prompt in measured.prompts],
            num_samples=measured.num_samples,
            max_tokens=measured.max_tokens,
            # Not compared, so in the way that takes least.
            prefix=_other_tokens(prefix, vocab_size),
        )
        if task.warmed:
            measured = Job(
                prompts=measured.prompts,
                num_samples=measured.num_samples,
                max_tokens=measured.max_tokens,
                prefix=prefix,
            )
        jobs = [others, measured]
    return Request(model=model, threads=threads, jobs=jobs)


def figures(task: Task, answer: Answer) -> dict[str, Any]:
    """An answer in the terms of `looseleaf bench`, as far as one can see from outside; what cannot
    be seen is None, such as the speed of prefill among several requests."""
    memory = None if math.isnan(answer.peak_rss_mib) else answer.peak_rss_mib
    if task.workload is None:
        return {"first_token_s": answer.elapsed_s, "peak_rss_mib": memory}
    workload, spans = task.workload, answer.spans
    streamed = all(span.first_count < workload.max_tokens for span in spans)
    firsts = [span.first_s for span in spans]
    gaps = [
        (span.last_s - span.first_s) / (span.last_count - span.first_count)
        for span in spans
        if span.last_count > span.first_count
    ]
    alone = streamed and workload.num_requests * workload.num_samples == 1
    return {
        "wall_s": answer.wall_s,
        "ttft_ms": 1000 * median(firsts) if streamed else None,
        "max_ttft_ms": 1000 * max(firsts) if streamed else None,
        "tpot_ms": 1000 * median(gaps) if streamed else None,
        "prefill_tokens_per_s": workload.prompt_tokens / firsts[0] if alone else None,
        "decode_tokens_per_s": 1 / gaps[0] if alone else None,
        "output_tokens_per_s": workload.output_tokens / answer.wall_s,
        "peak_rss_mib": memory,
    }


def _job(workload: Workload, vocab_size: int) -> Job:
    return Job(
        prompts=workload.prompts(vocab_size),
        num_samples=workload.num_samples,
        max_tokens=workload.max_tokens,
    )


def _other_tokens(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Other ordinary tokens, equal where these are equal: ids turned by a third of the range that
    `Workload.prompts` draws from."""
    low, high = vocab_size // 4, vocab_size * 3 // 4
    turn = (high - low) // 3
    return [low + (token_id - low + turn) % (high - low) for token_id in token_ids]
