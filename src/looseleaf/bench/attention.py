"""Attention alone: what paging costs, and what sharing blocks gains."""

from collections.abc import Sequence
from typing import Any

from looseleaf.bench.kernels import Kernels
from looseleaf.bench.progress import Advance
from looseleaf.bench.shapes import ModelShapes
from looseleaf.bench.timing import Timed, alternating_seconds
from looseleaf.core.errors import ConfigError
from looseleaf.executors.kv_dtype import INTEGER_STEP, INTEGERS

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1024, 4096)
NUM_SEQUENCES = 32
"""Whose blocks are in order or shuffled: enough that their KV is in no cache."""

NUM_SHARERS, SHARED_TOKENS, OWN_TOKENS = 64, 4096, 32


def block_sizes_for(kv_type: str, head_dim: int) -> list[int]:
    """Those that this type can have. Raises ConfigError where it can have none."""
    if kv_type not in INTEGERS:
        return list(BLOCK_SIZES)
    if head_dim % INTEGER_STEP:
        raise ConfigError(
            f"{kv_type} needs a head_dim that is a multiple of {INTEGER_STEP}, but this model's is "
            f"{head_dim}: measure f16"
        )
    return [size for size in BLOCK_SIZES if size % INTEGER_STEP == 0]


class Attention:
    """One layer's attention over a decoding batch, for the heads of one model."""

    def __init__(
        self, kernels: Kernels, shapes: ModelShapes, *, threads: int, kv_type: str, rounds: int
    ) -> None:
        self._kernels = kernels
        self._shapes = shapes
        self._threads = threads
        self._kv_type = kv_type
        self._rounds = rounds

    def compare_layouts(self, context: int, block_size: int) -> dict[str, Any]:
        """Shuffled blocks against blocks in order. `ratio` is what shuffling multiplies the time
        by."""
        paged, contiguous = alternating_seconds(
            self._run(NUM_SEQUENCES, context, block_size),
            self._run(NUM_SEQUENCES, context, block_size, contiguous=True),
            self._rounds,
        )
        return {
            "context": context,
            "block_size": block_size,
            "num_sequences": NUM_SEQUENCES,
            "paged_s": paged,
            "contiguous_s": contiguous,
            "ratio": paged / contiguous,
        }

    def compare_sharing(self, block_size: int) -> dict[str, Any]:
        """A prefix that all sequences share against one that each has for itself. `ratio` is how
        many times as fast sharing makes it."""
        context = SHARED_TOKENS + OWN_TOKENS
        shared, private = alternating_seconds(
            self._run(NUM_SHARERS, context, block_size, shared=SHARED_TOKENS),
            self._run(NUM_SHARERS, context, block_size),
            self._rounds,
        )
        return {
            "context": context,
            "shared_tokens": SHARED_TOKENS,
            "block_size": block_size,
            "num_sequences": NUM_SHARERS,
            "shared_s": shared,
            "private_s": private,
            "ratio": private / shared,
        }

    def _run(
        self,
        num_sequences: int,
        context: int,
        block_size: int,
        *,
        shared: int = 0,
        contiguous: bool = False,
    ) -> Timed:
        def run(repeats: int) -> float:
            return self._kernels.bench_attention(
                num_sequences,
                context,
                shared,
                self._shapes.num_heads,
                self._shapes.num_kv_heads,
                self._shapes.head_dim,
                block_size,
                contiguous,
                self._threads,
                repeats,
                self._kv_type,
            )

        return run


def num_comparisons(block_sizes: Sequence[int]) -> int:
    """How often `measure_attention` advances."""
    return len(block_sizes) * (len(CONTEXTS) + 1)


def measure_attention(
    attention: Attention, block_sizes: Sequence[int], advance: Advance
) -> dict[str, Any]:
    """All comparisons, for each block size: `layouts` and `sharing`."""
    layouts, sharing = [], []
    for block_size in block_sizes:
        for context in CONTEXTS:
            layouts.append(attention.compare_layouts(context, block_size))
            advance()
        sharing.append(attention.compare_sharing(block_size))
        advance()
    layouts.sort(key=lambda result: int(result["context"]))
    return {"layouts": layouts, "sharing": sharing}
