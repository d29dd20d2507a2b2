"""The native executor: a program compiled for the C++ runtime, on packed weights.

Its logits depend on a sequence's own tokens alone, to the last bit, whatever else is in the step
and whatever the number of threads; layouts and orders of arithmetic are in native/layout.md.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from looseleaf.compiled import compiled
from looseleaf.core.errors import ConfigError
from looseleaf.core.step import Step, StepResult
from looseleaf.executors.batch import Batch, make_batch
from looseleaf.executors.draw import draw
from looseleaf.executors.grammar_states import GrammarStates, NewMatcher
from looseleaf.executors.kv_dtype import kv_row_bytes
from looseleaf.executors.kv_memory import give_back, store_block, zeroed
from looseleaf.executors.native_profile import PassTotals, Work, passes_done
from looseleaf.executors.native_program import compile_program
from looseleaf.executors.packed_weights import FLOAT_TYPES, PackedWeight
from looseleaf.executors.rows import InvalidStepError, Rows
from looseleaf.program.program import Program

Floats = NDArray[np.float32]


LOGITS_PADDING = 16
"""Columns after those of the vocabulary: rows a power of two apart would share a few cache sets."""


def native_module() -> ModuleType:
    """The compiled part. Raises ConfigError where the package has none."""
    native = compiled()
    if native is None:
        raise ConfigError(
            "the native executor is not in this installation: install a C++20 compiler and "
            "reinstall looseleaf, or use the reference executor"
        )
    return native


class NativeExecutor:
    """Runs a program in one call per step, without the GIL.

    A step may have at most `max_tokens` tokens, at positions below `max_positions`. Ids from
    `num_valid_tokens` on are never sampled. `kv_dtype` is one of kv_dtype.py's; `activations`, with
    which quantized weights are multiplied, "int8" or "f32"; `kernels` "auto", "portable" or "avx2".
    `new_matcher` is for requests with a grammar: see GrammarStates.
    Raises ConfigError where the package has no compiled part, ValueError for a `kv_dtype` that does
    not go with the block size or head_dim.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, PackedWeight],
        num_blocks: int,
        block_size: int,
        *,
        max_tokens: int,
        max_positions: int,
        num_threads: int,
        num_valid_tokens: int | None = None,
        kv_dtype: str = "f32",
        activations: str = "int8",
        kernels: str = "auto",
        new_matcher: NewMatcher | None = None,
    ) -> None:
        native = native_module()
        self.program = program
        self._max_tokens = max_tokens
        self._num_valid_tokens = num_valid_tokens
        self._rows = Rows(num_blocks, block_size)
        self._grammars = GrammarStates(new_matcher)
        compiled_program = compile_program(program, max_positions)
        # The runtime borrows all of these arrays.
        self._matrices = [
            (weight.form.type, weight.form.n, weight.form.k, weight.data)
            for weight in (weights[name] for name in compiled_program.matrices)
        ]
        packed = dict(zip(compiled_program.matrices, self._matrices, strict=True))
        self._weight_bytes = {name: data.nbytes for name, (*_, data) in packed.items()}
        self._quantized = [
            name
            for name, (kind, *_) in packed.items()
            if activations == "int8" and kind not in FLOAT_TYPES
        ]
        self._vectors = [weights[name].data.view(np.float32) for name in compiled_program.vectors]
        self._ropes = compiled_program.ropes
        self._kv_dtype = kv_dtype
        rows_per_block = program.num_kv_heads * block_size
        block_bytes = rows_per_block * kv_row_bytes(kv_dtype, program.head_dim)
        self._keys = zeroed((program.num_layers, num_blocks, block_bytes), np.uint8)
        self._values = zeroed((program.num_layers, num_blocks, block_bytes), np.uint8)
        self._logits: Floats = np.zeros((0, program.vocab_size), np.float32)
        self._runtime = native.make_runtime(
            (
                program.num_layers,
                program.num_heads,
                program.num_kv_heads,
                program.head_dim,
                block_size,
                num_blocks,
                max_tokens,
                activations == "int8",
            ),
            [(buffer.rows == "sampled", buffer.columns) for buffer in program.buffers],
            compiled_program.ops,
            self._matrices,
            self._vectors,
            self._ropes,
            kv_dtype,
            self._keys.reshape(-1),
            self._values.reshape(-1),
            num_threads,
            kernels,
        )

    def execute(self, step: Step) -> StepResult:
        start = perf_counter()
        self._grammars.forget(step.finished)
        logits, batch = self.logits(step)
        middle = perf_counter()
        drawn = draw(
            batch.ranges,
            logits,
            self._num_valid_tokens,
            self._runtime.threads,
            self._grammars,
        )
        durations = (("forward", middle - start), ("sample", perf_counter() - middle))
        return drawn.result(step.step_id, durations)

    def logits(self, step: Step) -> tuple[Floats, Batch]:
        """Do all of a step but the sampling. The rows (S, vocab) that the batch names are valid
        until the next call."""
        self._rows.update(step)
        batch = make_batch(step, self._rows, self.program.vocab_size)
        if len(batch.token_ids) > self._max_tokens:
            raise InvalidStepError(
                f"a step of {len(batch.token_ids)} tokens, planned for {self._max_tokens}"
            )
        num_rows = len(batch.logits_rows)
        if num_rows > len(self._logits):
            columns = self.program.vocab_size + LOGITS_PADDING
            self._logits = np.empty((num_rows, columns), np.float32)
        sequences = [
            (table_start, part.start, part.first_position, part.stop - part.start)
            for table_start, part in zip(batch.table_starts, batch.ranges, strict=True)
        ]
        self._grammars.begin(batch.ranges)
        self._runtime.execute(
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.logits_rows,
            batch.tables,
            np.array(sequences, np.int64).reshape(-1, 4),
            np.array(step.copies, np.int32).reshape(-1, 2),
            self._logits,
        )
        return self._logits[:num_rows, : self.program.vocab_size], batch

    def read_block(self, block_id: int) -> bytes:
        return self._keys[:, block_id].tobytes() + self._values[:, block_id].tobytes()

    def write_block(self, block_id: int, data: bytes) -> None:
        store_block(data, self._keys[:, block_id], self._values[:, block_id])

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        for cache in (self._keys, self._values):
            give_back(cache, block_ids)

    @property
    def num_threads(self) -> int:
        return int(self._runtime.num_threads)

    def start_profile(self) -> None:
        """From now on, measure how long every pass takes."""
        self._runtime.start_profile()

    def profile(self) -> list[Work]:
        """What every pass of the program did since `start_profile`, in order."""
        return passes_done(
            self.program,
            [PassTotals(*totals) for totals in self._runtime.profile()],
            self._weight_bytes,
            self._quantized,
            kv_dtype=self._kv_dtype,
        )

    def close(self) -> None:
        """Stop the threads and let go of weights and KV cache; more than once does no harm."""
        self._grammars.close()
        self._runtime = None
        self._matrices, self._vectors = [], []
        self._keys = self._values = np.zeros((0, 0, 0), np.uint8)
