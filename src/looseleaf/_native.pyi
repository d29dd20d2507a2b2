from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

LAYOUT_VERSION: int

def cpu_features() -> dict[str, bool]: ...
def read_bandwidth(num_bytes: int, num_threads: int, repeats: int = 3) -> float: ...
def peak_int8_madds(threads: int) -> float: ...
def peak_f32_flops(threads: int) -> float: ...
def bench_matmul(
    packed_type: str, n: int, k: int, rows: int, threads: int, repeats: int
) -> float: ...
def packed_type(source: str) -> str: ...
def packed_bytes(type: str, n: int, k: int) -> int: ...
def pack(
    source: str, rows: NDArray[Any], n: int, k: int, packed: NDArray[Any], threads: int
) -> None: ...
def unpack(type: str, n: int, k: int, packed: NDArray[Any], out: NDArray[Any]) -> None: ...
def matmul(
    type: str,
    n: int,
    k: int,
    packed: NDArray[Any],
    x: NDArray[Any],
    out: NDArray[Any],
    quantize: bool,
    addend: NDArray[Any] | None = None,
    kernels: str = "auto",
) -> None: ...
def bench_attention(
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
) -> float: ...

class Runtime:
    @property
    def num_threads(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    def execute(
        self,
        token_ids: NDArray[Any],
        positions: NDArray[Any],
        slots: NDArray[Any],
        sampled_rows: NDArray[Any],
        tables: NDArray[Any],
        sequences: NDArray[Any],
        copies: NDArray[Any],
        logits: NDArray[Any],
    ) -> None: ...
    def start_profile(self) -> None: ...
    def profile(self) -> list[tuple[str, int, float, int, int, int, int]]: ...

def make_runtime(
    shape: tuple[int, int, int, int, int, int, int, bool],
    buffers: Sequence[tuple[bool, int]],
    ops: Sequence[tuple[int, int, int, int, int, int, int, int, float]],
    matrices: Sequence[tuple[str, int, int, NDArray[Any]]],
    vectors: Sequence[NDArray[Any]],
    ropes: Sequence[tuple[int, NDArray[Any], NDArray[Any]]],
    kv_type: str,
    keys: NDArray[Any],
    values: NDArray[Any],
    num_threads: int,
    kernels: str,
) -> Runtime: ...
