"""The reference executor: NumPy, slow, obviously right. What other executors are compared with.

Its logits for a token are the same to the last bit whatever else is in the batch and however the
prompt was cut into chunks. BLAS adds up in an order that depends on the shapes it is given, so it
is given the same ones always: tiles of a fixed number of rows, and contexts cut at fixed positions,
filled up with zeros. That one row's result does not depend on which row of a tile it is, is BLAS's
own doing: with rows along the vector lanes (`weight @ tile.T`), 16 rows are computed alike.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from looseleaf.core.errors import ConfigError
from looseleaf.core.step import Step, StepResult
from looseleaf.executors.batch import Batch, make_batch
from looseleaf.executors.draw import draw
from looseleaf.executors.grammar_states import GrammarStates, NewMatcher
from looseleaf.executors.kv_cache import KVCache
from looseleaf.executors.kv_memory import store_block
from looseleaf.executors.paged_attention import attend
from looseleaf.executors.rows import Rows
from looseleaf.program.op import (
    Add,
    Embed,
    Linear,
    Logits,
    PagedAttention,
    RMSNorm,
    Rope,
    SampledRows,
    SiluMul,
    WriteKV,
)
from looseleaf.program.program import Program

Floats = NDArray[np.float32]

_ROWS = 16  # of a tile in matrix products


class ReferenceExecutor:
    """Runs a program op by op. Needs 4 bytes per parameter besides the KV cache.

    `weights` maps the program's weight names to float32 arrays of the program's shapes; they are
    used in place and not modified. Ids from `num_valid_tokens` on are never sampled nor listed.
    `new_matcher` is for requests with a grammar: see GrammarStates.
    Raises `ConfigError` if a weight is missing or misshapen, or the program has an op that this
    executor lacks.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Floats],
        num_blocks: int,
        block_size: int,
        *,
        num_valid_tokens: int | None = None,
        new_matcher: NewMatcher | None = None,
    ) -> None:
        _check_ops(program)
        _check_weights(program, weights)
        self.program = program
        self._weights = weights
        self._num_valid_tokens = num_valid_tokens
        self._rows = Rows(num_blocks, block_size)
        self._grammars = GrammarStates(new_matcher)
        self._kv = KVCache(
            program.num_layers, program.num_kv_heads, program.head_dim, num_blocks, block_size
        )
        self._last_uses = program.last_uses()
        self._blas = ThreadpoolController()

    def execute(self, step: Step) -> StepResult:
        start = perf_counter()
        self._grammars.forget(step.finished)
        logits, batch = self.logits(step)
        middle = perf_counter()
        drawn = draw(batch.ranges, logits, self._num_valid_tokens, grammars=self._grammars)
        durations = (("forward", middle - start), ("sample", perf_counter() - middle))
        return drawn.result(step.step_id, durations)

    def logits(self, step: Step) -> tuple[Floats, Batch]:
        """Do all of a step but the sampling. Returns the rows (S, vocab) that the batch names in
        `logits_rows`. Raises `InvalidStepError`."""
        self._rows.update(step)
        for copy in step.copies:
            self._kv.copy(copy.source, copy.destination)
        batch = make_batch(step, self._rows, self.program.vocab_size)
        run = _Run(self._weights, self._kv, batch)
        if len(batch.token_ids):
            # Threads of BLAS wait for each other at every small product: where anything else runs
            # on the machine, that costs several times what they gain.
            with self._blas.limit(limits=1, user_api="blas"):
                for op, unused in zip(self.program.ops, self._last_uses, strict=True):
                    _OPS[type(op)](run, op)
                    for buffer_id in unused:
                        del run.buffers[buffer_id]
        return run.logits, batch

    def read_block(self, block_id: int) -> bytes:
        return b"".join(part.tobytes() for part in self._kv.block(block_id))

    def write_block(self, block_id: int, data: bytes) -> None:
        store_block(data, *self._kv.block(block_id))

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        """NumPy's memory comes and goes as a whole."""

    def close(self) -> None:
        """Let go of the weights and the KV cache; once is enough, and more does no harm."""
        self._weights = {}
        self._kv.close()


class _Run:
    """One pass through the program: buffers by id, from their op to their last use."""

    def __init__(self, weights: Mapping[str, Floats], kv: KVCache, batch: Batch) -> None:
        self.weights = weights
        self.kv = kv
        self.batch = batch
        self.buffers: dict[int, Floats] = {}
        self.logits: Floats = np.zeros((0, 0), np.float32)


def _embed(run: _Run, op: Embed) -> None:
    run.buffers[op.target] = run.weights[op.weight][run.batch.token_ids]


def _linear(run: _Run, op: Linear) -> None:
    result = _product(run.buffers[op.source], run.weights[op.weight])
    if op.bias is not None:
        result += run.weights[op.bias]
    run.buffers[op.target] = result


def _product(rows: Floats, weight: Floats) -> Floats:
    """rows (n, in) @ weight (out, in).T, in tiles of `_ROWS` rows."""
    num_rows, width = rows.shape
    num_tiles = -(-num_rows // _ROWS)
    padded = np.zeros((num_tiles * _ROWS, width), np.float32)
    padded[:num_rows] = rows
    tiles = padded.reshape(num_tiles, _ROWS, width)
    result: Floats = np.matmul(weight, tiles.transpose(0, 2, 1))
    return result.transpose(0, 2, 1).reshape(num_tiles * _ROWS, len(weight))[:num_rows]


def _rms_norm(run: _Run, op: RMSNorm) -> None:
    x = run.buffers[op.source]
    mean = np.mean(x * x, axis=-1, keepdims=True)
    run.buffers[op.target] = x / np.sqrt(mean + np.float32(op.eps)) * run.weights[op.weight]


def _rope(run: _Run, op: Rope) -> None:
    x = run.buffers[op.source]
    angles = np.outer(run.batch.positions, np.array(op.frequencies))  # float64
    cos = (np.cos(angles) * op.scale).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * op.scale).astype(np.float32)[:, None, :]
    heads = x.reshape(len(x), -1, op.head_dim)
    half = len(op.frequencies)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    turned = heads.copy()
    turned[..., :half] = first * cos - second * sin
    turned[..., half : 2 * half] = second * cos + first * sin
    run.buffers[op.target] = turned.reshape(x.shape)


def _write_kv(run: _Run, op: WriteKV) -> None:
    run.kv.write(op.layer, run.batch.slots, run.buffers[op.keys], run.buffers[op.values])


def _paged_attention(run: _Run, op: PagedAttention) -> None:
    queries = run.buffers[op.queries]
    result = np.empty_like(queries)
    for part in run.batch.ranges:
        keys, values = run.kv.read(op.layer, part.slots(0, run.kv.block_size))
        result[part.start : part.stop] = attend(
            queries[part.start : part.stop], keys, values, part.first_position, op.scale, op.window
        )
    run.buffers[op.target] = result


def _add(run: _Run, op: Add) -> None:
    run.buffers[op.target] = run.buffers[op.left] + run.buffers[op.right]


def _silu_mul(run: _Run, op: SiluMul) -> None:
    gate = run.buffers[op.gate]
    with np.errstate(over="ignore"):  # exp of a large number is infinite, and its inverse 0
        run.buffers[op.target] = gate / (1 + np.exp(-gate)) * run.buffers[op.up]


def _sampled_rows(run: _Run, op: SampledRows) -> None:
    run.buffers[op.target] = run.buffers[op.source][run.batch.logits_rows]


def _logits(run: _Run, op: Logits) -> None:
    run.logits = run.buffers[op.source]


_OPS: dict[type, Callable[[_Run, Any], None]] = {
    Embed: _embed,
    Linear: _linear,
    RMSNorm: _rms_norm,
    Rope: _rope,
    WriteKV: _write_kv,
    PagedAttention: _paged_attention,
    Add: _add,
    SiluMul: _silu_mul,
    SampledRows: _sampled_rows,
    Logits: _logits,
}


def _check_ops(program: Program) -> None:
    missing = sorted({op.kind for op in program.ops if type(op) not in _OPS})
    if missing:
        raise ConfigError(
            f"{program.name}: the reference executor does not have the ops {', '.join(missing)}: "
            "choose another executor or another model"
        )


def _check_weights(program: Program, weights: Mapping[str, Floats]) -> None:
    for name, shape in program.weights:
        weight = weights.get(name)
        if weight is None or weight.shape != shape or weight.dtype != np.float32:
            found = "missing" if weight is None else f"{weight.dtype} {weight.shape}"
            raise ConfigError(
                f"{program.name}: weight {name} is {found}, but it must be float32 {shape}: load "
                "program and weights from the same file"
            )
