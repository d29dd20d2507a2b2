"""The work that follows from a shape, against what is counted of the model's own program."""

from pathlib import Path

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.executors.cost import CostCounter
from looseleaf.models.load import load_program
from looseleaf.planner.cost_model import StepPart
from looseleaf.planner.models import load_shape
from looseleaf.planner.shape_work import ShapeCounter
from looseleaf.sampling.params import SamplingParams
from looseleaf.weights.gguf import GGUFFile


@pytest.fixture
def counters(tiny_model: Path) -> tuple[CostCounter, ShapeCounter]:
    with GGUFFile(tiny_model) as file:
        _, program = load_program(file)
        sizes = {name: info.nbytes for name, info in file.tensors.items()}
    return CostCounter(program, sizes, "int16"), ShapeCounter(load_shape(str(tiny_model)))


def step(parts: list[StepPart]) -> Step:
    sequences = []
    for i, (num, first) in enumerate(parts):
        name = RequestId(str(i))
        sample = Sample(name, SamplingParams(seed=0), 0, first + num)
        sequences.append(ScheduledSequence(name, (1,) * num, first, 0, (BlockId(0),), (sample,)))
    return Step(1, tuple(sequences))


def test_steps_of_decoding_are_counted_the_same(
    counters: tuple[CostCounter, ShapeCounter],
) -> None:
    of_program, of_shape = counters
    parts = [StepPart(1, length) for length in (0, 7, 100, 500)]
    exact, ours = of_program.count(step(parts)), of_shape.count(parts)
    assert ours.linear_flops == exact.linear_flops
    assert ours.attention_flops == exact.attention_flops
    assert ours.kv_read_bytes == exact.kv_read_bytes
    assert ours.kv_written_bytes == exact.kv_written_bytes
    # Norms are read besides, and rows of the embedding are taken to be of 16 bits.
    assert ours.weight_bytes == pytest.approx(exact.weight_bytes, rel=0.02)


def test_of_chunks_the_program_leaves_out_rows_of_the_last_layer_that_nobody_draws_from(
    counters: tuple[CostCounter, ShapeCounter],
) -> None:
    of_program, of_shape = counters
    parts = [StepPart(40, 60), StepPart(1, 7)]
    exact, ours = of_program.count(step(parts)), of_shape.count(parts)
    num_layers = 2
    assert exact.linear_flops <= ours.linear_flops <= exact.linear_flops * num_layers
    assert exact.attention_flops <= ours.attention_flops <= exact.attention_flops * num_layers
    assert ours.kv_written_bytes == exact.kv_written_bytes
    assert ours.kv_read_bytes == exact.kv_read_bytes
