"""One model on both executors, and the logits that they give."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step
from looseleaf.executors.native import NativeExecutor, native_module
from looseleaf.executors.packed_weights import PACKED_TYPES, pack
from looseleaf.executors.reference import ReferenceExecutor
from looseleaf.models.load import load_program, load_weights, raw_weights
from looseleaf.sampling.params import SamplingParams
from looseleaf.weights.gguf import GGUFFile

GREEDY = SamplingParams(temperature=0)
NUM_BLOCKS = 96


class Model:
    """One model for both executors."""

    def __init__(self, path: Path) -> None:
        with GGUFFile(path) as file:
            self.config, self.program = load_program(file)
            self.floats = load_weights(file, self.config, self.program)
            raw = raw_weights(file, self.config, self.program, PACKED_TYPES)
            self.packed = {name: pack(native_module(), weight, 2) for name, weight in raw}
        self.made: list[Any] = []

    def native(
        self,
        *,
        threads: int = 2,
        kernels: str = "auto",
        block_size: int = 16,
        kv_dtype: str = "f32",
    ) -> Any:
        executor = NativeExecutor(
            self.program,
            self.packed,
            NUM_BLOCKS,
            block_size,
            max_tokens=256,
            max_positions=512,
            num_threads=threads,
            kernels=kernels,
            kv_dtype=kv_dtype,
        )
        self.made.append(executor)
        return executor

    def reference(self, block_size: int = 16) -> ReferenceExecutor:
        return ReferenceExecutor(self.program, self.floats, NUM_BLOCKS, block_size)


def logits_of(
    executor: Any, prompts: list[list[int]], chunk: int, seed: int, block_size: int = 16
) -> list[np.ndarray]:
    """All logits of each prompt, computed together in chunks, in blocks that lie anywhere."""
    blocks = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    tables = [
        tuple(BlockId(blocks.pop()) for _ in range(-(-len(p) // block_size))) for p in prompts
    ]
    rows: list[list[np.ndarray]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    step_id = 0
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        step_id += 1
        sequences, members = [], []
        for i, prompt in enumerate(prompts):
            new = tuple(prompt[done[i] : done[i] + chunk])
            if not new:
                continue
            end = done[i] + len(new)
            sequences.append(
                ScheduledSequence(
                    RequestId(str(i)),
                    new,
                    done[i],
                    0,
                    tables[i] if done[i] == 0 else (),
                    (Sample(RequestId(str(i)), GREEDY, 0, end),),
                    True,
                )
            )
            members.append(i)
            done[i] = end
        logits, batch = executor.logits(Step(step_id, tuple(sequences)))
        for i, part in zip(members, batch.ranges, strict=True):
            rows[i].append(logits[part.logits_start : part.logits_stop].copy())
    finished = tuple(RequestId(str(i)) for i in range(len(prompts)))
    executor.execute(Step(step_id + 1, (), finished=finished))
    return [np.concatenate(parts) for parts in rows]


def prompts_of(model: Model, lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(model.config.tokenizer_size) for _ in range(n)] for n in lengths]
