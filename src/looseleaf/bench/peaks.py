"""What the machine can do at most, measured."""

from looseleaf.bench.kernels import Kernels
from looseleaf.executors.native_profile import Peaks

BANDWIDTH_BYTES = 256 * 2**20
"""Read for the measurement: several times any ordinary last-level cache."""


def measure_peaks(threads: int, native: Kernels) -> Peaks:
    """Takes about a second, in which nothing else should run."""
    return Peaks(
        native.peak_int8_madds(threads),
        native.peak_f32_flops(threads) / 2,
        native.read_bandwidth(BANDWIDTH_BYTES, threads),
    )
