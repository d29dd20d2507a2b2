"""A tiny program to plan with, and workloads that meet every decision of the scheduler."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import Step
from looseleaf.executors.cost import CostCounter, StepCost
from looseleaf.planner.workload import Event, arrival
from looseleaf.program.op import BufferId, Embed, Linear, Logits, PagedAttention, WriteKV
from looseleaf.program.program import Buffer, Program
from looseleaf.sampling.params import SamplingParams

WIDTH, VOCAB = 8, 20


class CountedTimes:
    """Implements `StepTimes` by the FLOPs and bytes of a program: `seconds_of` says how long they
    take."""

    def __init__(self, counter: CostCounter, seconds_of: Callable[[StepCost], float]) -> None:
        self._counter = counter
        self._seconds_of = seconds_of

    def seconds(self, step: Step) -> float:
        return self._seconds_of(self._counter.count(step))

    def decoding(
        self, num_stored: Sequence[int], names: Sequence[RequestId] = ()
    ) -> Iterator[float]:
        return map(self._seconds_of, self._counter.decoding(num_stored))


def counter(windows: tuple[int | None, ...] = (None,)) -> CostCounter:
    """Of a model with one layer for each window."""
    ids = [BufferId(i) for i in range(4)]
    layers = [
        op
        for layer, window in enumerate(windows)
        for op in (
            Linear(ids[1], ids[0], "k"),
            WriteKV(layer, ids[1], ids[1]),
            PagedAttention(ids[2], ids[0], layer, 0.5, window),
        )
    ]
    ops = (Embed(ids[0], "embd"), *layers, Linear(ids[3], ids[2], "embd"), Logits(ids[3]))
    columns = (WIDTH, 4, WIDTH, VOCAB)
    buffers = tuple(Buffer(i, "tokens", n) for i, n in zip(ids, columns, strict=True))
    weights = (("embd", (VOCAB, WIDTH)), ("k", (4, WIDTH)))
    program = Program("tiny", ops, buffers, weights, len(windows), 2, 1, 4, VOCAB)
    sizes: Mapping[str, int] = {"embd": 2 * VOCAB * WIDTH, "k": 2 * 4 * WIDTH}
    return CostCounter(program, sizes, "f16")


def linear_times(windows: tuple[int | None, ...] = (None,)) -> CountedTimes:
    """So much for a step, a token, and a byte."""

    def seconds(cost: StepCost) -> float:
        return 0.004 + 0.0003 * cost.num_tokens + 1e-7 * cost.num_bytes

    return CountedTimes(counter(windows), seconds)


def mixed_arrivals(seed: int, num: int, gap: float, *, max_tokens: int = 60) -> Iterator[Event]:
    """Prompts of all lengths, many with a beginning in common, some sent twice; several samples of
    some, log-probabilities and scores of others; at times many at once, at times nothing for
    long."""
    rng = random.Random(seed)
    beginnings = [[2 * i] * rng.randrange(5, 200) for i in range(5)]
    prompts: list[list[int]] = []
    now = 0.0
    for i in range(num):
        now += rng.choice([0.0, 0.0, gap * rng.random(), gap, 10 * gap * rng.random()])
        if prompts and rng.random() < 0.1:
            prompt = rng.choice(prompts)
        else:
            prompt = rng.choice([[], *beginnings]) + [2 * i + 1] * rng.randrange(1, 120)
            prompts.append(prompt)
        asked = SamplingParams(
            n=rng.choice([1, 1, 1, 1, 2, 3]),
            max_tokens=rng.choice([0, 1, 2, rng.randrange(1, max_tokens), max_tokens]),
            ignore_eos=True,
            seed=0,
            prompt_logprobs=rng.random() < 0.03,
            logprobs=3 if rng.random() < 0.03 else None,
        )
        if asked.max_tokens == 0 or asked.prompt_logprobs:
            asked = SamplingParams(max_tokens=asked.max_tokens, prompt_logprobs=True, seed=0)
        yield arrival(now, lambda i=i, p=prompt, a=asked, t=now: request(f"{i}", p, a, t, i % 3))


def request(
    name: str, prompt: list[int], params: SamplingParams, time: float, priority: int = 0
) -> Request:
    children = tuple(
        Request(
            RequestId(f"{name}/{i}"),
            prompt,
            params,
            arrival_time=time,
            priority=priority,
            sample_index=i,
        )
        for i in range(1, params.n)
    )
    return Request(
        RequestId(name), prompt, params, arrival_time=time, priority=priority, children=children
    )
