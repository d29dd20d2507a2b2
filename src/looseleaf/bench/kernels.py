"""The compiled part's own measurements, as the benchmarks use them."""

from typing import Protocol, cast

from looseleaf.compiled import compiled
from looseleaf.core.errors import ConfigError

_NEEDED = ("bench_matmul", "bench_attention", "peak_int8_madds", "peak_f32_flops")


class Kernels(Protocol):
    """Functions of `looseleaf._native`. Whatever they compute on is random and made inside, and
    making it is not timed."""

    def read_bandwidth(self, num_bytes: int, num_threads: int, repeats: int = 3, /) -> float:
        """Bytes per second at which memory is read."""

    def packed_bytes(self, packed_type: str, n: int, k: int, /) -> int:
        """Memory of a packed matrix of `n` outputs and `k` inputs."""

    def bench_matmul(
        self, packed_type: str, n: int, k: int, rows: int, threads: int, repeats: int, /
    ) -> float:
        """Seconds of one product of `rows` rows with a packed matrix."""

    def bench_attention(
        self,
        num_sequences: int,
        context: int,
        shared: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        contiguous: bool,
        threads: int,
        repeats: int,
        kv_type: str,
        /,
    ) -> float:
        """Seconds of one layer's attention for one new token of each sequence.

        The first `shared` tokens are in blocks that all sequences hold. `contiguous` is whether a
        sequence's blocks lie in memory in their order, one after the other, or shuffled.
        """

    def peak_int8_madds(self, threads: int, /) -> float:
        """The most 8-bit multiply-adds per second."""

    def peak_f32_flops(self, threads: int, /) -> float:
        """The most float32 operations per second; a multiply-add is two."""


def kernels() -> Kernels:
    """Raises ConfigError where there are no such measurements."""
    native = compiled()
    if native is None:
        raise ConfigError(
            "kernels cannot be measured without the compiled part: install a C++20 compiler and "
            "reinstall looseleaf"
        )
    missing = [name for name in _NEEDED if not hasattr(native, name)]
    if missing:
        raise ConfigError(
            f"the compiled part is older than this benchmark and lacks {', '.join(missing)}: "
            f"reinstall looseleaf"
        )
    return cast(Kernels, native)
