"""How the native executor keeps keys and values: f32, f16, or int16 with scales."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_runs import NUM_BLOCKS, Model, logits_of, prompts_of
from tiny_gguf import write_tiny_model

from looseleaf.compiled import compiled
from looseleaf.core.errors import ConfigError
from looseleaf.engine.build import build
from looseleaf.engine.settings import EngineSettings

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

DTYPES = ["f32", "f16", "int16", "int8"]
LENGTHS = [5, 33, 150]  # the last crosses from one split to the next

MakeModel = Callable[[int], Model]


@pytest.fixture
def make_model(tmp_path: Path) -> Iterator[MakeModel]:
    made = []

    def make(head_dim: int) -> Model:
        made.append(Model(write_tiny_model(tmp_path / f"{head_dim}.gguf", head_dim=head_dim)))
        return made[-1]

    yield make
    for model in made:
        for executor in model.made:
            executor.close()


# 136 and 200 channels are more than one group of 64, and no whole number of them.
@pytest.mark.parametrize("head_dim", [8, 64, 72, 136, 200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_portable_kernels_give_the_same_bits(
    make_model: MakeModel, dtype: str, head_dim: int
) -> None:
    model = make_model(head_dim)
    prompts = prompts_of(model, LENGTHS)
    fast = logits_of(model.native(kv_dtype=dtype), prompts, 16, 1)
    portable = logits_of(model.native(kernels="portable", kv_dtype=dtype), prompts, 9, 2)
    for a, b in zip(fast, portable, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("head_dim", [8, 64, 136])
def test_int16_is_about_as_exact_as_f16(
    make_model: MakeModel, head_dim: int, record_property: Any
) -> None:
    model = make_model(head_dim)
    prompts = prompts_of(model, LENGTHS)
    exact = logits_of(model.reference(), prompts, 64, 1)
    errors = {}
    for dtype in DTYPES:
        logits = logits_of(model.native(kv_dtype=dtype), prompts, 64, 1)
        differences = np.concatenate([a - b for a, b in zip(logits, exact, strict=True)])
        errors[dtype] = float(np.sqrt(np.mean(differences**2)))
    size = float(np.sqrt(np.mean(np.concatenate(exact) ** 2)))
    print(f"root mean square of the error, logits of {size:.2f}: {errors}")
    assert errors["f32"] < 1e-5 * size
    assert errors["f32"] < errors["f16"] < 1e-3 * size
    assert errors["int16"] < 2 * errors["f16"]
    assert errors["f16"] < errors["int8"] < 0.04 * size


@pytest.mark.parametrize("kernels", ["avx2", "portable"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_blocks_held_before_never_counts(
    make_model: MakeModel, dtype: str, kernels: str
) -> None:
    model = make_model(64)
    prompts = prompts_of(model, LENGTHS)
    try:
        clean, used = (model.native(kernels=kernels, kv_dtype=dtype) for _ in range(2))
    except ValueError as error:
        pytest.skip(str(error))
    # All bits set: NaN in f32 and f16, and as a scale.
    used._keys[:] = 0xFF
    used._values[:] = 0xFF
    for a, b in zip(logits_of(clean, prompts, 16, 1), logits_of(used, prompts, 16, 1), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["int16", "int8"])
def test_bits_of_integers_do_not_depend_on_batch_or_chunks(
    make_model: MakeModel, dtype: str, seed: int
) -> None:
    model = make_model(64)
    rng = random.Random(seed)
    prompts = prompts_of(model, [rng.randint(1, 180) for _ in range(5)], seed)
    alone = [logits_of(model.native(threads=1, kv_dtype=dtype), [p], 200, seed)[0] for p in prompts]
    for threads in (1, 2, 3):
        chunk = rng.choice([1, 7, 16, 30])
        executor = model.native(threads=threads, kv_dtype=dtype, block_size=8)
        assert sum(len(p) for p in prompts) < NUM_BLOCKS * 8
        for one, other in zip(alone, logits_of(executor, prompts, chunk, seed, 8), strict=True):
            assert np.array_equal(one, other), (threads, chunk)


def test_int16_asks_for_whole_vectors(tmp_path: Path, make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="integers need a head_dim and a block size"):
        make_model(64).native(kv_dtype="int16", block_size=4)
    path = write_tiny_model(tmp_path / "twelve.gguf", head_dim=12)
    for settings, message in (
        ({"block_size": 4}, "block_size that is a multiple of 8, but it is 4"),
        ({}, "head_dim that is a multiple of 8, but it is 12"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(EngineSettings(model=str(path), kv_cache_dtype="int16", **settings))
    assert build(EngineSettings(model=str(path))).settings.kv_cache_dtype == "f16"
