"""Rows, the flat batch, and the KV storage."""

from typing import Any

import numpy as np
import pytest

from looseleaf.core.request import RequestId
from looseleaf.core.step import BlockCopy, Step
from looseleaf.executors.batch import make_batch
from looseleaf.executors.kv_cache import KVCache
from looseleaf.executors.rows import InvalidStepError, Rows


def test_tables_take_in_deltas_and_forget(scheduled: Any) -> None:
    rows = Rows(num_blocks=20, block_size=4)
    a, b = RequestId("a"), RequestId("b")
    rows.update(Step(1, (scheduled("a", [1] * 6, block_ids=[7, 3]),)))
    rows.update(Step(2, (scheduled("a", [1], 6), scheduled("b", [1], block_ids=[9]))))
    assert (rows.table(a).tolist(), rows.table(b).tolist()) == ([7, 3], [9])
    # A copy-on-write of the last block and a further one, in one delta.
    rows.update(Step(3, (scheduled("a", [1, 1], 7, table_start=1, block_ids=[4, 8]),)))
    assert rows.table(a).tolist() == [7, 4, 8]
    rows.update(Step(4, (scheduled("a", [1], block_ids=[2]),), finished=(a, b)))
    assert rows.table(a).tolist() == [2]
    assert list(rows) == [a]
    assert b not in rows
    assert len(rows) == 1


def test_a_sequence_comes_once_in_a_step(scheduled: Any) -> None:
    rows = Rows(num_blocks=20, block_size=4)
    with pytest.raises(InvalidStepError, match="twice in step 1"):
        rows.update(Step(1, (scheduled("a", [1], block_ids=[7]), scheduled("a", [2], 1))))


def test_chains_of_copies_are_refused() -> None:
    rows = Rows(num_blocks=20, block_size=4)
    copies = (BlockCopy(1, 2), BlockCopy(2, 3))  # type: ignore[arg-type]
    with pytest.raises(InvalidStepError, match="source and destination"):
        rows.update(Step(1, (), copies))


def test_a_batch_lies_flat(scheduled: Any) -> None:
    rows = Rows(num_blocks=20, block_size=4)
    step = Step(
        1,
        (
            scheduled("a", [10, 11, 12], 3, block_ids=[5, 2], prompt_logprobs=True),
            scheduled("b", [20], block_ids=[9], params=None),
            scheduled("c", [30, 31], block_ids=[0], params=None, prompt_logprobs=True),
            scheduled("d", [40, 41], 6, block_ids=[11, 12]),
        ),
    )
    rows.update(step)
    batch = make_batch(step, rows, 100)
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 30, 31, 40, 41]
    assert batch.positions.tolist() == [3, 4, 5, 0, 0, 1, 6, 7]
    assert batch.slots.tolist() == [23, 8, 9, 36, 0, 1, 50, 51]
    assert batch.logits_rows.tolist() == [0, 1, 2, 4, 7]
    assert [(p.start, p.stop) for p in batch.ranges] == [(0, 3), (3, 4), (4, 6), (6, 8)]
    assert [(p.logits_start, p.logits_stop) for p in batch.ranges] == [
        (0, 3),
        (3, 3),
        (3, 4),
        (4, 5),
    ]
    assert batch.ranges[0].slots(0, 4).tolist() == [20, 21, 22, 23, 8, 9]
    assert [p.scored_token_ids for p in batch.ranges] == [(11, 12), (), (31,), ()]


def test_kv_blocks_are_copied_in_every_layer() -> None:
    kv = KVCache(num_layers=3, num_kv_heads=2, head_dim=4, num_blocks=6, block_size=5)
    rng = np.random.default_rng(0)
    slots = np.array([10, 12, 14, 11, 13])
    for layer in range(3):
        kv.write(layer, slots, rng.random((5, 8), np.float32), rng.random((5, 8), np.float32))
    kv.copy(2, 4)
    for layer in range(3):
        for here, there in zip(kv.read(layer, slots), kv.read(layer, slots + 10), strict=True):
            assert here.shape == (5, 2, 4)
            assert np.array_equal(here, there)
            assert here.all()
    untouched = np.array([0, 5, 9, 15, 19, 25, 29])
    assert not any(part.any() for part in kv.read(1, untouched))


def test_kv_bytes_are_those_of_the_formula() -> None:
    kv = KVCache(num_layers=30, num_kv_heads=3, head_dim=64, num_blocks=10, block_size=16)
    assert kv.nbytes == 10 * 16 * (2 * 30 * 3 * 64 * 4)
