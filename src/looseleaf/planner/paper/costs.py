"""What paging costs: Figs. 18 and 19."""

from looseleaf.planner.cost_model import StepPart
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.paper.figure import Cell, Figure, Row
from looseleaf.planner.paper.published import (
    BEST_BLOCK_SIZES,
    COMPARABLE_BLOCK_SIZES,
    KERNEL_OVERHEAD,
)
from looseleaf.planner.paper.setups import BLOCK_SIZE, DTYPE, OPT_13B, VLLM, kernel_overhead
from looseleaf.planner.paper.trials import Trials

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

LOAD = 0.95
"""Of the rate that vLLM sustains at blocks of 16: so near that what large blocks waste shows."""

LESS_LOAD = 0.6
"""Of the same, as a test of that."""

NEAR = 1.1
"""Latencies that are called equal to the lowest, as a multiple of it."""

SWAPPED_TOKENS = 256
"""Of the one sequence that is moved or computed again."""

PCIE_BYTES_PER_SECOND = 25e9
"""PCI Express 4.0 with 16 lanes carries 31.5e9 (16 GT/s, 128 bits of 130); four fifths of that is
what copies of large pinned pieces reach on an A100."""

COPY_SECONDS = 6e-6
"""Of one cudaMemcpyAsync, whatever its size: 5 to 7 us (arXiv 2602.21548, section 5.2)."""


def block_sizes(trials: Trials) -> Figure:
    sizes = BLOCK_SIZES[::2] if trials.quick else BLOCK_SIZES
    latencies: dict[str, dict[int, float]] = {}
    for name in BEST_BLOCK_SIZES:
        rate = LOAD * trials.full(name, VLLM).rate
        latencies[name] = {
            size: trials.served(name, VLLM, rate, block_size=size).latency for size in sizes
        }
    rows = [
        Row(
            f"blocks of {size}",
            (
                Cell(KERNEL_OVERHEAD if size == BLOCK_SIZE else None, kernel_overhead(size)),
                *(Cell(None, found[size]) for found in latencies.values()),
            ),
        )
        for size in sizes
    ]
    return Figure(
        "Fig. 18",
        "slower attention, as a share, and seconds a token of whole answers",
        ("attention", *latencies),
        tuple(rows),
        tested=(_at_less_load(trials),),
        notes=(
            *(f"{name}: {_best(name, found)}" for name, found in latencies.items()),
            "the paper's 20-26% at blocks of 16 are put in, and taken to be a cost of each block; "
            "`looseleaf bench kernels` measures the kernels of this machine",
            f"requests come at {LOAD:.0%} of what vLLM serves at blocks of {BLOCK_SIZE}",
        ),
        digits=3,
    )


def _at_less_load(trials: Trials) -> str:
    """Alpaca's sequences are the shortest, so that they waste most of a large block."""
    rate = LESS_LOAD * trials.full("Alpaca", VLLM).rate
    small, large = (
        trials.served("Alpaca", VLLM, rate, block_size=size).latency
        for size in (BLOCK_SIZE, BLOCK_SIZES[-1])
    )
    return (
        f"at {LESS_LOAD:.0%} instead of {LOAD:.0%} of that rate, blocks of {BLOCK_SIZES[-1]} take "
        f"{large / small:.1f} times as long as those of {BLOCK_SIZE}, for Alpaca: the rise at "
        "large blocks is memory that fills up"
    )


def _best(name: str, found: dict[int, float]) -> str:
    lowest = min(found.values())
    best = [size for size, latency in found.items() if latency <= NEAR * lowest]
    low, high = BEST_BLOCK_SIZES[name]
    return (
        f"within {NEAR - 1:.0%} of the lowest latency are blocks of {', '.join(map(str, best))}; "
        f"the paper recommends {low} to {high}"
    )


def swap_seconds(block_size: int) -> float:
    """To bring the blocks of a sequence one way, of keys and of values in each layer by itself."""
    num_blocks = -(-SWAPPED_TOKENS // block_size)
    num_copies = 2 * len(OPT_13B.shape.kv_layers) * num_blocks
    num_bytes = num_blocks * block_size * OPT_13B.token_bytes
    return num_copies * COPY_SECONDS + num_bytes / PCIE_BYTES_PER_SECOND


def recompute_seconds() -> float:
    """As one prompt, alone in a step."""
    return OPT_13B.roofline(VLLM).seconds([StepPart(SWAPPED_TOKENS, 0)])


def recompute_or_swap(_: Trials) -> Figure:
    again = 1000 * recompute_seconds()
    rows = []
    for size in BLOCK_SIZES:
        one_way = 1000 * swap_seconds(size)
        cells = (one_way, 2 * one_way, again, again / (2 * one_way))
        rows.append(Row(f"blocks of {size}", tuple(Cell(None, cell) for cell in cells)))
    low, high = COMPARABLE_BLOCK_SIZES
    between = ", ".join(
        f"{again / (2000 * swap_seconds(size)):.2f}" for size in BLOCK_SIZES if low <= size <= high
    )
    return Figure(
        "Fig. 19",
        f"ms to get {SWAPPED_TOKENS} tokens of OPT-13B back: swapped, or computed again",
        ("swap, one way", "swap out and in", "recompute", "recompute over swap"),
        tuple(rows),
        notes=(
            f"the paper finds the two comparable at blocks of {low} to {high}: here recomputing "
            f"takes {between} of swapping's time",
            f"swapping: {PCIE_BYTES_PER_SECOND / 1e9:.0f} GB/s (PCIe 4.0 x16, four fifths of its "
            f"31.5) and {1e6 * COPY_SECONDS:.0f} us for each copy (arXiv 2602.21548), one for keys "
            "and one for values of each block and layer",
            f"recomputing: the roofline of {load_hardware(OPT_13B.hardware).title} in {DTYPE}; "
            "rates under preemption are not replayed with swapping",
        ),
        digits=1,
    )
