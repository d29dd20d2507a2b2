"""Memory for keys and values."""

import resource

import numpy as np
import pytest

from looseleaf.executors.kv_memory import ORDINARY_BYTES, zeroed


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 0, 4), (30, 4001, 33), (1, ORDINARY_BYTES)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_zeros_that_can_be_written(shape: tuple[int, ...], dtype: type) -> None:
    array = zeroed(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert not array.any()
    array += dtype(1)
    assert (array == 1).all()


def test_memory_is_taken_as_it_is_used() -> None:
    array = zeroed((2, 2**16, 2**14), np.float32)  # 8 GiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array[0, 0], array[1, 0], array[1, -1] = 1, 2, 3
    assert (array[0, 0, 0], array[1, 0, 5], array[1, -1, -1], array[1, 1, 0]) == (1, 2, 3, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
