"""Running a workload on an engine, and what its steps tell about speed."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

from looseleaf.bench.progress import Advance
from looseleaf.bench.workloads import Workload
from looseleaf.core.errors import ConfigError, LooseleafError
from looseleaf.core.request import RequestId
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.llm import LLM, RequestOutput
from looseleaf.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of a workload. None is what cannot be said, such as a speed without a decoded token.

    `wall_s` goes from submission, of all requests at once, to the last answer. `ttft_ms` and
    `tpot_ms` are medians over the sequences: from submission to the end of the step that draws the
    first token, and from there to the last one per token after the first; `max_ttft_ms` is that of
    the sequence that waits longest.

    A step that computes a prompt token counts for prefill, whatever else it computes, and every
    other step for decoding. `prefill_tokens_per_s` is the prompt tokens computed (those found
    stored are not) over the time of the former; `decode_tokens_per_s` the tokens drawn in the
    latter over their time. For one request alone these are its prompt over the time to its first
    token, and the tokens after the first over the time from the first to the last.
    `output_tokens_per_s` is all tokens drawn over `wall_s`.

    `blocks_peak` is the most KV blocks held at once. Prompt tokens that a preemption made the
    engine compute again are counted again.
    """

    wall_s: float
    ttft_ms: float
    max_ttft_ms: float
    tpot_ms: float | None
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    output_tokens_per_s: float
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    steps: int
    preemptions: int
    blocks_peak: int


class StepRecord(NamedTuple):
    """`end` is in seconds since the submission; `sampled` are the sequences that got a token."""

    end: float
    prompt_tokens: int
    sampled: tuple[RequestId, ...]
    blocks_held: int


def measure(
    llm: LLM, workload: Workload, *, rounds: int, warmup: int, advance: Advance
) -> dict[str, Any]:
    """Run the workload `warmup` times for nothing, then `rounds` times: medians of what a `Round`
    has, and the wall time of each.

    Every run begins with an empty prefix cache. Raises ConfigError if the workload does not fit.
    """
    check_fits(llm, workload)
    prompts = workload.prompts(llm.stack.tokenizer.vocab_size)
    measured = []
    for index in range(warmup + rounds):
        measured.append(run_round(llm, workload, prompts))
        advance()
        if index < warmup:
            measured.clear()
    return {
        **_medians(measured),
        "rounds": rounds,
        "wall_s_of_rounds": [r.wall_s for r in measured],
        "num_requests": workload.num_requests,
        "num_samples": workload.num_samples,
        "prompt_tokens": workload.num_requests * workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
    }


def check_fits(llm: LLM, workload: Workload) -> None:
    """Raise ConfigError if the model or the settings leave too little room for a sequence."""
    limit = llm.stack.memory.max_model_len
    if workload.total_tokens > limit:
        raise ConfigError(
            f"the workload {workload.name} has sequences of {workload.total_tokens} tokens, but "
            f"max_model_len is {limit}: raise --max-model-len or --kv-cache-memory, or take a "
            f"model with a larger context (this one's is {llm.stack.model_config.context_length})"
        )


def run_round(llm: LLM, workload: Workload, prompts: Sequence[list[int]]) -> Round:
    """Run the workload once, on an engine with nothing else to do."""
    scheduler = llm.engine.scheduler
    allocator = scheduler.allocator
    llm.engine.forget_cache()
    preemptions = scheduler.counters.preemptions
    records: list[StepRecord] = []
    start = time.perf_counter()

    def observe(step: Step, result: StepResult) -> None:
        records.append(
            StepRecord(
                time.perf_counter() - start,
                _prompt_tokens(step, workload.prompt_tokens),
                tuple(_gained(step, result)),
                allocator.num_blocks - allocator.num_available,
            )
        )

    params = SamplingParams(
        n=workload.num_samples, temperature=0, max_tokens=workload.max_tokens, ignore_eos=True
    )
    llm.engine.observers.append(observe)
    try:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        wall = time.perf_counter() - start
    finally:
        llm.engine.observers.remove(observe)
    _check_complete(workload, outputs)
    return summarize(
        records,
        wall,
        num_cached=sum(output.num_cached_tokens for output in outputs),
        num_preemptions=scheduler.counters.preemptions - preemptions,
    )


def summarize(
    records: Sequence[StepRecord], wall: float, *, num_cached: int, num_preemptions: int
) -> Round:
    """The figures of a round, from its steps in order."""
    times: dict[RequestId, list[float]] = defaultdict(list)
    prefill_time = decode_time = previous = 0.0
    num_decoded = 0
    for record in records:
        seconds, previous = record.end - previous, record.end
        if record.prompt_tokens:
            prefill_time += seconds
        else:
            decode_time += seconds
            num_decoded += len(record.sampled)
        for request_id in record.sampled:
            times[request_id].append(record.end)
    num_computed = sum(record.prompt_tokens for record in records)
    firsts = [ends[0] for ends in times.values()]
    gaps = [(t[-1] - t[0]) / (len(t) - 1) for t in times.values() if len(t) > 1]
    return Round(
        wall_s=wall,
        ttft_ms=1000 * median(firsts),
        max_ttft_ms=1000 * max(firsts),
        tpot_ms=1000 * median(gaps) if gaps else None,
        prefill_tokens_per_s=num_computed / prefill_time,
        decode_tokens_per_s=num_decoded / decode_time if num_decoded else None,
        output_tokens_per_s=sum(map(len, times.values())) / wall,
        prompt_tokens_computed=num_computed,
        prompt_tokens_cached=num_cached,
        steps=len(records),
        preemptions=num_preemptions,
        blocks_peak=max(record.blocks_held for record in records),
    )


def _gained(step: Step, result: StepResult) -> Iterator[RequestId]:
    """The requests that gained a token in the step, once for each. After the first guess that was
    wrong nothing counts."""
    tokens = iter(result.tokens)
    for sequence in step.sequences:
        drafts = sequence.token_ids[len(sequence.token_ids) - sequence.num_drafts :]
        counts = True
        for i, sample in enumerate(sequence.samples):
            token = next(tokens)
            if counts:
                yield sample.request_id
            counts = counts and (not drafts or drafts[i : i + 1] == (token,))


def _prompt_tokens(step: Step, prompt_length: int) -> int:
    """Tokens of the step that belong to prompts, all of which have that length."""
    return sum(
        max(0, min(prompt_length - s.first_position, len(s.token_ids))) for s in step.sequences
    )


def _check_complete(workload: Workload, outputs: Sequence[RequestOutput]) -> None:
    """A broken model is fast: raise LooseleafError if an answer ended early."""
    for output in outputs:
        for sample in output.outputs:
            if len(sample.token_ids) != workload.max_tokens:
                raise LooseleafError(
                    f"{workload.name}: an answer has {len(sample.token_ids)} of "
                    f"{workload.max_tokens} tokens and ended with {sample.finish_reason!r}: the "
                    f"model's logits are no numbers; fetch or convert its file again"
                )


def _medians(measured: Sequence[Round]) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for field in fields(Round):
        values = [getattr(r, field.name) for r in measured]
        result[field.name] = None if None in values else median(values)
    return result
