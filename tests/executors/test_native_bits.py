"""The native executor's logits are the same bits whatever happens around a sequence."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import write_tiny_model

from looseleaf.compiled import compiled
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.executors.native import NativeExecutor, native_module
from looseleaf.executors.packed_weights import PACKED_TYPES, pack
from looseleaf.models.load import load_program, raw_weights
from looseleaf.weights.gguf import GGUFFile

pytestmark = pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")

Q = gguf.GGMLQuantizationType
NUM_BLOCKS = 2048
MAX_TOKENS = 512


class Workload(NamedTuple):
    """Sequences that begin with the same `shared` tokens; each goes on with tokens of its own."""

    kv: tuple[str, int]
    shared: int
    own: tuple[int, ...]
    seed: int

    @property
    def kv_dtype(self) -> str:
        return self.kv[0]

    @property
    def block_size(self) -> int:
        return self.kv[1]


workloads = st.builds(
    Workload,
    kv=st.one_of(
        st.tuples(st.sampled_from(["f32", "f16"]), st.sampled_from([1, 3, 8, 16, 32])),
        st.tuples(st.sampled_from(["int16", "int8"]), st.sampled_from([8, 16, 24, 32])),
    ),
    shared=st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 256, 257, 300, 400])),
    own=st.lists(st.integers(1, 60), min_size=1, max_size=7).map(tuple),
    seed=st.integers(0, 2**32),
)


class Model:
    def __init__(self, path: Any) -> None:
        with GGUFFile(path) as file:
            self.config, self.program = load_program(file)
            raw = raw_weights(file, self.config, self.program, PACKED_TYPES)
            self.weights = {name: pack(native_module(), weight, 1) for name, weight in raw}
        self.executors: dict[Any, NativeExecutor] = {}

    def executor(self, threads: int, block_size: int, kv_dtype: str) -> NativeExecutor:
        key = (threads, block_size, kv_dtype)
        if key not in self.executors:
            self.executors[key] = NativeExecutor(
                self.program,
                self.weights,
                NUM_BLOCKS,
                block_size,
                max_tokens=MAX_TOKENS,
                max_positions=MAX_TOKENS,
                num_threads=threads,
                kv_dtype=kv_dtype,
            )
        return self.executors[key]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("bits") / "tiny.gguf"
    made = Model(write_tiny_model(path, types=(Q.Q4_1, Q.Q8_0, Q.Q4_0, Q.F32)))
    yield made
    for executor in made.executors.values():
        executor.close()


class Run:
    """Sequences on an executor, with blocks taken from anywhere."""

    def __init__(self, executor: NativeExecutor, block_size: int, rng: random.Random) -> None:
        self.executor = executor
        self.block_size = block_size
        self.rng = rng
        self.blocks = [BlockId(i) for i in range(NUM_BLOCKS)]
        rng.shuffle(self.blocks)
        self.step_id = 0
        self.known: set[str] = set()

    def blocks_for(self, num_tokens: int) -> tuple[BlockId, ...]:
        return tuple(self.blocks.pop() for _ in range(-(-num_tokens // self.block_size)))

    def step(self, parts: list[tuple[str, list[int], int, tuple[BlockId, ...]]]) -> list[Any]:
        """(name, tokens, first position, table) of each sequence; the logits of all tokens."""
        self.step_id += 1
        sequences = tuple(
            ScheduledSequence(
                RequestId(name),
                tuple(tokens),
                first,
                0,
                () if name in self.known else table,
                (),
                prompt_logprobs=True,
                next_token_id=0,
            )
            for name, tokens, first, table in parts
        )
        self.known.update(name for name, *_ in parts)
        logits, batch = self.executor.logits(Step(self.step_id, sequences))
        return [logits[r.logits_start : r.logits_stop].copy() for r in batch.ranges]

    def end(self) -> None:
        finished = tuple(map(RequestId, self.known))
        self.executor.execute(Step(self.step_id + 1, (), finished=finished))


def alone(executor: NativeExecutor, block_size: int, prompt: list[int], seed: int) -> Any:
    run = Run(executor, block_size, random.Random(seed))
    (logits,) = run.step([("alone", prompt, 0, run.blocks_for(len(prompt)))])
    run.end()
    return logits


def together(
    executor: NativeExecutor, load: Workload, shared: list[int], own: list[list[int]], seed: int
) -> list[Any]:
    """The beginning once, then all sequences in uneven chunks, sharing its full blocks. Returns
    the logits of each one's own tokens."""
    rng = random.Random(seed)
    run = Run(executor, load.block_size, rng)
    full = len(shared) // load.block_size * load.block_size
    table = run.blocks_for(len(shared))
    done = 0
    while done < len(shared):
        chunk = rng.choice([1, 5, 64, 300])
        run.step([("first", shared[done : done + chunk], done, table)])
        done += chunk
    # What a sequence has to compute: all beyond the shared blocks.
    todo = [shared[full:] + tokens for tokens in own]
    tables = [table[: full // load.block_size] + run.blocks_for(len(t)) for t in todo]
    rows: list[list[Any]] = [[] for _ in own]
    starts = [0] * len(own)
    while any(start < len(t) for start, t in zip(starts, todo, strict=True)):
        waiting = [i for i, t in enumerate(todo) if starts[i] < len(t)]
        rng.shuffle(waiting)
        members = waiting[: rng.randint(1, len(waiting))]
        parts = []
        for i in members:
            chunk = todo[i][starts[i] : starts[i] + rng.choice([1, 1, 2, 9, 70])]
            parts.append((f"own-{i}", chunk, full + starts[i], tables[i]))
            starts[i] += len(chunk)
        for i, logits in zip(members, run.step(parts), strict=True):
            rows[i].append(logits)
    run.end()
    return [np.concatenate(parts)[-len(tokens) :] for parts, tokens in zip(rows, own, strict=True)]


@settings(max_examples=25)
@given(load=workloads)
def test_bits_depend_on_a_sequences_own_tokens_alone(model: Model, load: Workload) -> None:
    rng = random.Random(load.seed)
    vocabulary = model.config.tokenizer_size
    shared = [rng.randrange(vocabulary) for _ in range(load.shared)]
    own = [[rng.randrange(vocabulary) for _ in range(length)] for length in load.own]
    one = model.executor(1, load.block_size, load.kv_dtype)
    expected = [
        alone(one, load.block_size, shared + tokens, load.seed)[-len(tokens) :] for tokens in own
    ]
    for threads in (1, 2, 3, 4):
        executor = model.executor(threads, load.block_size, load.kv_dtype)
        found = together(executor, load, shared, own, load.seed + threads)
        for ours, theirs in zip(found, expected, strict=True):
            assert np.array_equal(ours, theirs), threads
