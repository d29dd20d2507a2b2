"""Kernels that take a known time."""

from types import SimpleNamespace

import pytest


def read_bandwidth(num_bytes: int, threads: int, repeats: int = 3) -> float:
    return 20e9


def packed_bytes(packed_type: str, n: int, k: int) -> int:
    return n * k // {"q4": 2, "q8": 1}[packed_type] if packed_type != "f32" else 4 * n * k


def bench_matmul(packed_type: str, n: int, k: int, rows: int, threads: int, repeats: int) -> float:
    """2e9 multiply-adds a second on each thread, whatever the shape."""
    return n * k * rows / (2e9 * threads)


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
) -> float:
    """A nanosecond for each token read, a tenth more where blocks are shuffled."""
    tokens = num_sequences * (context - shared) + shared
    return tokens * 1e-9 * (1 if contiguous else 1.1)


@pytest.fixture
def fake_native() -> SimpleNamespace:
    return SimpleNamespace(
        read_bandwidth=read_bandwidth,
        packed_bytes=packed_bytes,
        bench_matmul=bench_matmul,
        bench_attention=bench_attention,
        peak_int8_madds=lambda threads: 10e9 * threads,
        peak_f32_flops=lambda threads: 8e9 * threads,
    )
