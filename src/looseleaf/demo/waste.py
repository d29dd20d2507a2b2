"""The waste simulation: the same 1,000 sequences in three allocators.

Lengths are 70% short (32..511), 25% medium (512..2047) and 5% long (2048..4095). The waste is
weighted by tokens, as a ratio of sums: slots that no token uses over slots that are taken.
"""

import math
import random
from collections.abc import Iterator, Sequence
from statistics import mean, stdev
from typing import Any

from looseleaf.core.block_tables import blocks_for
from looseleaf.engine.contiguous import next_power_of_two

MAX_LENGTH = 4096
BLOCK_SIZE = 16
BLOCK_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
MIX = ((0.70, 32, 511), (0.25, 512, 2047), (0.05, 2048, 4095))
"""(share, shortest, longest), uniform in between."""


def draw_lengths(num_sequences: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    parts = rng.choices(MIX, weights=[share for share, _, _ in MIX], k=num_sequences)
    return [rng.randint(shortest, longest) for _, shortest, longest in parts]


def waste(lengths: Sequence[int], taken: Sequence[int]) -> float:
    """The share of taken slots that hold no token."""
    return 1 - sum(lengths) / sum(taken)


def paged(lengths: Sequence[int], block_size: int) -> list[int]:
    """The slots that each of these takes in blocks of `block_size`."""
    return [blocks_for(length, block_size) * block_size for length in lengths]


def single_run(num_sequences: int, seed: int) -> dict[str, float]:
    """One draw of lengths: the waste of each allocator, and what paging gains."""
    lengths = draw_lengths(num_sequences, seed)
    taken = paged(lengths, BLOCK_SIZE)
    powers = [next_power_of_two(length) for length in lengths]
    return {
        "contiguous": waste(lengths, [MAX_LENGTH] * num_sequences),
        "power_of_two": waste(lengths, powers),
        "paged": waste(lengths, taken),
        "concurrency": MAX_LENGTH * num_sequences / sum(taken),
        "concurrency_over_power_of_two": sum(powers) / sum(taken),
        "per_sequence_paged": mean(1 - a / b for a, b in zip(lengths, taken, strict=True)),
    } | {f"paged_{size}": waste(lengths, paged(lengths, size)) for size in BLOCK_SIZES}


def _distribution() -> Iterator[tuple[int, float]]:
    for share, shortest, longest in MIX:
        for length in range(shortest, longest + 1):
            yield length, share / (longest - shortest + 1)


def exact() -> dict[str, float]:
    """What the simulation converges to, summed over the distribution itself."""
    weighted = list(_distribution())
    length = sum(p * n for n, p in weighted)
    taken = {b: sum(p * blocks_for(n, b) * b for n, p in weighted) for b in BLOCK_SIZES}
    power = sum(p * next_power_of_two(n) for n, p in weighted)
    return {
        "contiguous": 1 - length / MAX_LENGTH,
        "power_of_two": 1 - length / power,
        "paged": 1 - length / taken[BLOCK_SIZE],
        "concurrency": MAX_LENGTH / taken[BLOCK_SIZE],
        "concurrency_over_power_of_two": power / taken[BLOCK_SIZE],
        "per_sequence_paged": sum(
            p * (1 - n / (blocks_for(n, BLOCK_SIZE) * BLOCK_SIZE)) for n, p in weighted
        ),
    } | {f"paged_{b}": 1 - length / taken[b] for b in BLOCK_SIZES}


def simulate(
    num_seeds: int = 200, num_sequences: int = 1000, first_seed: int = 0
) -> dict[str, Any]:
    """Means over `num_seeds` runs. Waste is a fraction of 1.

    `confidence_95` is the interval for each mean (normal approximation), `single_run_sd` the
    spread of single runs, and `exact` the expectation, which the intervals should hold.
    """
    runs = [single_run(num_sequences, first_seed + i) for i in range(num_seeds)]
    means = {name: mean(run[name] for run in runs) for name in runs[0]}
    spread = {name: stdev(run[name] for run in runs) for name in runs[0]}
    half = {name: 1.96 * sd / math.sqrt(num_seeds) for name, sd in spread.items()}
    by_size = {size: f"paged_{size}" for size in BLOCK_SIZES}
    main = [name for name in means if name not in by_size.values()]
    expected = exact()
    return {
        "sequences": num_sequences,
        "seeds": num_seeds,
        "max_length": MAX_LENGTH,
        "block_size": BLOCK_SIZE,
        **{name: means[name] for name in main},
        "by_block_size": {str(size): means[name] for size, name in by_size.items()},
        "confidence_95": {
            name: [means[name] - half[name], means[name] + half[name]] for name in main
        },
        "single_run_sd": {name: spread[name] for name in main},
        "exact": {name: expected[name] for name in main},
        "exact_by_block_size": {str(size): expected[name] for size, name in by_size.items()},
    }
