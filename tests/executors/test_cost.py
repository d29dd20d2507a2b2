"""FLOPs and bytes of a step, against sums over every row, layer and pair."""

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.executors.cost import CostCounter, StepCost
from looseleaf.program.op import (
    BufferId,
    Embed,
    Linear,
    Logits,
    PagedAttention,
    SampledRows,
    WriteKV,
)
from looseleaf.program.program import Buffer, Program, RowKind
from looseleaf.sampling.params import SamplingParams

WIDTH, VOCAB = 8, 20


def program(late: bool, window: int | None = None) -> Program:
    """One layer with 2 heads of 4 and one KV head; `late` attends for sampled rows only."""
    ids = [BufferId(i) for i in range(7)]
    kind: RowKind = "sampled" if late else "tokens"
    queries = ids[3] if late else ids[0]
    ops = (
        Embed(ids[0], "embd"),
        Linear(ids[1], ids[0], "k"),
        Linear(ids[2], ids[0], "v"),
        WriteKV(0, ids[1], ids[2]),
        SampledRows(ids[3], ids[0]),
        PagedAttention(ids[4], queries, 0, 0.5, window),
        Linear(ids[5], ids[3], "embd"),
        Logits(ids[5]),
    )
    columns = (WIDTH, 4, 4, WIDTH, WIDTH, VOCAB)
    rows: tuple[RowKind, ...] = ("tokens", "tokens", "tokens", "sampled", kind, "sampled")
    buffers = tuple(Buffer(*b) for b in zip(ids, rows, columns, strict=False))
    weights = (("embd", (VOCAB, WIDTH)), ("k", (4, WIDTH)), ("v", (4, WIDTH)))
    return Program("tiny", ops, buffers, weights, 1, 2, 1, 4, VOCAB)


BYTES = {"embd": VOCAB * 16, "k": 100, "v": 50}


def sequence(name: str, first: int, num: int, *, sampled: bool = True) -> ScheduledSequence:
    one = RequestId(name)
    samples = (Sample(one, SamplingParams(max_tokens=9), 0, first + num),) if sampled else ()
    return ScheduledSequence(one, (1,) * num, first, 0, (BlockId(0),), samples)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_a_step_costs_what_its_rows_and_pairs_do(late: bool, window: int | None) -> None:
    chunks = [(0, 5, False), (5, 4, True), (9, 1, True), (0, 1, True)]
    parts = tuple(sequence(str(i), f, n, sampled=s) for i, (f, n, s) in enumerate(chunks))
    cost = CostCounter(program(late, window), BYTES, "f16").count(Step(0, parts))
    pairs = read = 0
    for first, num, sampled in chunks:
        positions = range(first, first + num)
        if late:
            positions = positions[-1:] if sampled else positions[:0]
        keys = [range(max(0, p + 1 - (window or 99)), p + 1) for p in positions]
        pairs += sum(map(len, keys))
        read += len({k for r in keys for k in r})
    tokens, sampled_rows, kv = 11, 3, 2 * 4 * 2
    assert cost == StepCost(
        linear_flops=2 * WIDTH * (8 * tokens + VOCAB * sampled_rows),
        attention_flops=4 * 8 * pairs,
        weight_bytes=16 * tokens + 150 + BYTES["embd"],
        kv_read_bytes=kv * read,
        kv_written_bytes=kv * tokens,
        num_tokens=tokens,
        num_sequences=len(chunks),
    )


def test_without_a_sample_the_output_weights_are_not_read() -> None:
    step = Step(0, (sequence("a", 0, 4, sampled=False),))
    cost = CostCounter(program(False), BYTES, "f16").count(step)
    assert cost.weight_bytes == 16 * 4 + 150
    assert cost.linear_flops == 2 * WIDTH * 8 * 4


def test_guesses_and_scored_prompts_have_rows_of_logits() -> None:
    counter = CostCounter(program(False), BYTES, "f16")
    plain = counter.count(Step(0, (sequence("a", 3, 4),))).linear_flops
    row = 2 * WIDTH * VOCAB
    drafts = sequence("a", 3, 4)._replace(num_drafts=3)
    assert counter.count(Step(0, (drafts,))).linear_flops == plain + 3 * row
    scored = sequence("a", 3, 4)._replace(prompt_logprobs=True)
    assert counter.count(Step(0, (scored,))).linear_flops == plain + 3 * row


def test_the_kv_dtype_counts_with_its_scales() -> None:
    step = Step(0, (sequence("a", 0, 1),))
    written = {
        dtype: CostCounter(program(False), BYTES, dtype).count(step).kv_written_bytes
        for dtype in ("f32", "f16", "int16", "int8")
    }
    assert written == {"f32": 32, "f16": 16, "int16": 24, "int8": 16}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_steps_of_decoding_cost_what_each_of_them_does(late: bool, window: int | None) -> None:
    counter = CostCounter(program(late, window), BYTES, "f16")
    stored = [1, 7, 2, 3, 3]
    costs = counter.decoding(stored)
    for i in range(12):
        parts = tuple(sequence(str(j), n + i, 1) for j, n in enumerate(stored))
        assert next(costs) == counter.count(Step(i, parts))


def test_nothing_costs_nothing() -> None:
    cost = CostCounter(program(False), BYTES, "f16").count(Step(0, ()))
    assert cost == StepCost()
    assert (cost.flops, cost.num_bytes) == (0, 0)
