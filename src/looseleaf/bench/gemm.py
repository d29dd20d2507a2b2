"""Matrix products alone: how near they come to what the machine can do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from looseleaf.bench.kernels import Kernels
from looseleaf.bench.peaks import measure_peaks
from looseleaf.bench.progress import Advance
from looseleaf.bench.shapes import Product
from looseleaf.bench.timing import Timed, median_seconds
from looseleaf.executors.packed_weights import FLOAT_TYPES

ROWS = (1, 4, 8, 32, 128, 512)


def measure_products(
    kernels: Kernels,
    products: Iterable[Product],
    *,
    rows: Sequence[int] = ROWS,
    threads: int,
    rounds: int,
    advance: Advance,
) -> dict[str, Any]:
    """Each product with each number of rows: medians over `rounds`.

    Speeds are in 1e9 multiply-adds or bytes per second. `share_of_peak` is of the fastest
    multiply-adds measured for the type, whatever feeds them. At one row a product is limited by
    reading the matrix: `share_of_bandwidth` is of the speed at which memory is read, and goes past
    1 for a matrix that stays in a cache.
    """
    peaks = measure_peaks(threads, kernels)
    results = []
    for product in products:
        n, k, packed_type, _ = product
        peak = peaks.f32_madds if packed_type in FLOAT_TYPES else peaks.int8_madds
        for num_rows in rows:
            seconds = median_seconds(_run(kernels, product, num_rows, threads), rounds)
            speed = n * k * num_rows / seconds
            result: dict[str, Any] = {
                "n": n,
                "k": k,
                "type": packed_type,
                "rows": num_rows,
                "seconds": seconds,
                "gmadds_per_s": speed / 1e9,
                "share_of_peak": speed / peak,
            }
            if num_rows == 1:
                read = kernels.packed_bytes(packed_type, n, k) / seconds
                result |= {"gb_per_s": read / 1e9, "share_of_bandwidth": read / peaks.bytes}
            results.append(result)
            advance()
    return {
        "peak_int8_gmadds_per_s": peaks.int8_madds / 1e9,
        "peak_f32_gmadds_per_s": peaks.f32_madds / 1e9,
        "read_gb_per_s": peaks.bytes / 1e9,
        "products": results,
    }


def _run(kernels: Kernels, product: Product, num_rows: int, threads: int) -> Timed:
    n, k, packed_type, _ = product

    def run(repeats: int) -> float:
        return kernels.bench_matmul(packed_type, n, k, num_rows, threads, repeats)

    return run


def passes(
    products: Mapping[Product, int], results: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What the products alone allow a whole model, for each number of rows measured.

    `decode_tokens_per_s` is for a step with that many sequences, `prefill_tokens_per_s` for a
    chunk of a prompt of that length, which needs no logits.
    """
    seconds = {(r["n"], r["k"], r["type"], r["rows"]): r["seconds"] for r in results}
    found = []
    for num_rows in dict.fromkeys(r["rows"] for r in results):
        decode = prefill = 0.0
        for product, count in products.items():
            taken = count * seconds[*product[:3], num_rows]
            decode += taken
            prefill += 0 if product.of_logits else taken
        found.append(
            {
                "rows": num_rows,
                "decode_tokens_per_s": num_rows / decode,
                "prefill_tokens_per_s": num_rows / prefill,
            }
        )
    return found
