"""Step times of runs of decoding are those of the steps, whatever tells them."""

from itertools import islice

import pytest

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.planner.cost_model import StepPart, roofline
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.models import load_shape
from looseleaf.planner.shape_work import ShapeCounter
from looseleaf.planner.step_times import ShapeTimes
from looseleaf.sampling.params import SamplingParams

STORED = [1, 900, 4095, 4096, 20_000]


def decoding(num_stored: list[int]) -> Step:
    parts = []
    for i, length in enumerate(num_stored):
        name = RequestId(f"{i}")
        sample = Sample(name, SamplingParams(seed=0), 0, length + 1)
        parts.append(ScheduledSequence(name, (1,), length, 0, (BlockId(0),), (sample,)))
    return Step(1, tuple(parts))


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "qwen3-30b-a3b", "gemma-3-27b-it"])
@pytest.mark.parametrize("parallel", [1, 2])
def test_runs_of_decoding_take_what_their_steps_take(name: str, parallel: int) -> None:
    counter = ShapeCounter(load_shape(name), tensor_parallel_size=parallel)
    model = roofline(load_hardware("H100"), counter.count)
    at_once = list(islice(counter.decoding(STORED), 5))
    shape_times = list(islice(ShapeTimes(counter, model).decoding(STORED), 5))
    for i in range(5):
        stored = [length + i for length in STORED]
        assert at_once[i] == counter.count([StepPart(1, length) for length in stored])
        seconds = ShapeTimes(counter, model).seconds(decoding(stored))
        by_parts = model.seconds([StepPart(1, length) for length in stored])
        assert shape_times[i] == by_parts == seconds > 0
