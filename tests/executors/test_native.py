"""The native executor against the reference, and against itself under every circumstance."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from executor_runs import GREEDY, Model, logits_of, prompts_of
from tiny_gguf import write_tiny_model

from looseleaf.compiled import compiled
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import BlockCopy, Sample, ScheduledSequence, Step
from looseleaf.executors.native_program import rope_table

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Model]:
    model = Model(write_tiny_model(tmp_path / "tiny.gguf"))
    yield model
    for executor in model.made:
        executor.close()


@pytest.mark.parametrize("block_size", [1, 3, 8, 16])
def test_float_weights_give_the_references_logits(tiny: Model, block_size: int) -> None:
    prompts = prompts_of(tiny, [1, 7, 40])
    native = logits_of(tiny.native(block_size=block_size), prompts, 64, 1, block_size)
    reference = logits_of(tiny.reference(block_size), prompts, 64, 2, block_size)
    for ours, theirs in zip(native, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_bits_do_not_depend_on_batch_chunks_blocks_or_threads(tiny: Model, seed: int) -> None:
    rng = random.Random(seed)
    prompts = prompts_of(tiny, [rng.randint(1, 90) for _ in range(6)], seed)
    alone = [logits_of(tiny.native(threads=1), [p], 200, seed)[0] for p in prompts]
    for threads in (1, 2, 3, 4):
        chunk = rng.choice([1, 7, 16, 30])
        together = logits_of(tiny.native(threads=threads), prompts, chunk, seed + threads)
        for one, other in zip(alone, together, strict=True):
            assert np.array_equal(one, other), (threads, chunk)


def test_portable_kernels_give_the_same_bits(tiny: Model) -> None:
    prompts = prompts_of(tiny, [5, 33])
    fast = logits_of(tiny.native(), prompts, 16, 1)
    portable = logits_of(tiny.native(kernels="portable"), prompts, 9, 2)
    assert all(np.array_equal(a, b) for a, b in zip(fast, portable, strict=True))


def test_copied_blocks_read_like_their_sources(tiny: Model) -> None:
    executor = tiny.native()
    (prompt,) = prompts_of(tiny, [20])
    (expected,) = logits_of(tiny.native(), [prompt], 64, 1)
    first = ScheduledSequence(
        RequestId("a"), tuple(prompt[:18]), 0, 0, (BlockId(3), BlockId(4)), ()
    )
    executor.execute(Step(1, (first,)))
    # A copy of the second block, and a sequence that goes on in it.
    second = ScheduledSequence(
        RequestId("b"),
        tuple(prompt[18:]),
        18,
        0,
        (BlockId(3), BlockId(9)),
        (Sample(RequestId("b"), GREEDY, 0, 20),),
    )
    copies = (BlockCopy(BlockId(4), BlockId(9)),)
    logits, _ = executor.logits(Step(2, (second,), copies))
    assert np.array_equal(logits[-1], expected[-1])


@pytest.mark.model
def test_quantized_weights_keep_their_bits_and_come_close_to_float32(smollm2_path: Path) -> None:
    model = Model(smollm2_path)
    prompts = prompts_of(model, [3, 50, 17])
    alone = [logits_of(model.native(threads=1), [p], 200, 1)[0] for p in prompts]
    together = logits_of(model.native(), prompts, 7, 2)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
    reference = logits_of(model.reference(), prompts, 64, 3)
    for ours, theirs in zip(alone, reference, strict=True):
        # 8-bit activations: errors stay well below the spread of the logits themselves.
        assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.15 * theirs.std()


def test_rope_tables_are_those_of_float64() -> None:
    frequencies = tuple(10_000.0 ** (-i / 16) for i in range(16))
    _, cosines, sines = rope_table(frequencies, 1.25, 40_001)
    angles = np.arange(40_001)[:, None] * np.array(frequencies)
    assert cosines.shape == sines.shape == (40_001, 16)
    for ours, exact in ((cosines, 1.25 * np.cos(angles)), (sines, 1.25 * np.sin(angles))):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-7)
    # A position's row is the same however many there are.
    assert all(
        map(np.array_equal, rope_table(frequencies, 1.25, 77)[1:], (cosines[:77], sines[:77]))
    )
