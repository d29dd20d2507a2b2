"""The logits of a token are the same bits whatever else happens to be computed with it."""

import random
from typing import Any

import numpy as np
import pytest

LENGTH = 150
TOKENS = [int(t) for t in np.random.default_rng(8).integers(0, 96, LENGTH)]
NUM_BLOCKS = 200


def blocks(seed: int | None, count: int = -(-LENGTH // 4)) -> list[int]:
    order = list(range(NUM_BLOCKS))
    if seed is not None:
        random.Random(seed).shuffle(order)
    return order[:count]


def chunked(model: Any, drive: Any, scheduled: Any, size: int, seed: int | None) -> Any:
    """Logits of all positions, computed `size` tokens at a time."""
    driver = drive(model.executor(NUM_BLOCKS))
    rows = [
        driver.logits(
            scheduled(
                "a",
                TOKENS[start : start + size],
                start,
                block_ids=() if start else blocks(seed),
                prompt_logprobs=True,
            )
        )
        for start in range(0, LENGTH, size)
    ]
    return np.vstack(rows)


@pytest.fixture
def alone(tiny: Any, drive: Any, scheduled: Any) -> Any:
    """Logits of all positions, computed at once in blocks that lie in order."""
    return chunked(tiny, drive, scheduled, LENGTH, None)


@pytest.mark.parametrize("size", [1, 7, 16, 64, 150])
def test_for_any_chunks_and_any_blocks(
    size: int, tiny: Any, drive: Any, scheduled: Any, alone: Any
) -> None:
    assert np.array_equal(chunked(tiny, drive, scheduled, size, seed=size), alone)


def test_for_any_neighbours(tiny: Any, drive: Any, scheduled: Any, alone: Any) -> None:
    """The sequence goes on in uneven chunks among others of all lengths, at changing places."""
    rng = random.Random(3)
    driver = drive(tiny.executor(NUM_BLOCKS + 100))
    rows, start, count = [], 0, 0
    while start < LENGTH:
        size = min(rng.choice([1, 1, 2, 5, 23]), LENGTH - start)
        own = scheduled(
            "a",
            TOKENS[start : start + size],
            start,
            block_ids=() if start else blocks(1),
            prompt_logprobs=True,
        )
        free = list(range(NUM_BLOCKS, NUM_BLOCKS + 100))
        rng.shuffle(free)
        others = []
        for _ in range(rng.randrange(6)):
            count += 1
            length = rng.randrange(1, 40)
            token_ids = [rng.randrange(96) for _ in range(length)]
            table = [free.pop() for _ in range(-(-length // 4))]
            others.append(scheduled(f"other-{count}", token_ids, block_ids=table))
        place = rng.randrange(len(others) + 1)
        sequences = [*others[:place], own, *others[place:]]
        logits, batch = driver.executor.logits(driver.step(*sequences))
        part = batch.ranges[place]
        rows.append(logits[part.logits_start : part.logits_stop])
        driver.run(finished=tuple(o.request_id for o in others))
        start += size
    assert np.array_equal(np.vstack(rows), alone)


def test_for_a_shared_prefix(tiny: Any, drive: Any, scheduled: Any, alone: Any) -> None:
    driver = drive(tiny.executor(NUM_BLOCKS))
    table = blocks(2)
    driver.run(scheduled("writer", TOKENS[:101], block_ids=table[:26]))
    others = [b for b in range(NUM_BLOCKS) if b not in table]
    logits = driver.logits(
        scheduled(
            "reader",
            TOKENS[100:],
            100,
            block_ids=[*table[:25], *others[: len(table) - 25]],
            prompt_logprobs=True,
        )
    )
    assert np.array_equal(logits, alone[100:])


def test_for_preemption_and_recomputation(
    tiny: Any, drive: Any, scheduled: Any, alone: Any
) -> None:
    driver = drive(tiny.executor(NUM_BLOCKS))
    driver.run(scheduled("a", TOKENS[:90], block_ids=blocks(4)[:23]))
    logits = driver.logits(
        scheduled("a", TOKENS[:120], block_ids=blocks(5)[:30], prompt_logprobs=True),
        finished=("a",),
    )
    assert np.array_equal(logits, alone[:120])
