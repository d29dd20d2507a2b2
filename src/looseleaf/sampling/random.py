"""Counter-based random numbers: a draw depends on its key alone, never on earlier draws.

So neighbours in the batch, preemption, and other samples of the same prompt shift nobody's stream.
"""

import numpy as np


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1) for the token at `position` of one sample of a request.

    Philox4x64-10 (Salmon et al., SC 2011) with key (seed, sample_index) and counter
    (position + 1, 0, 0, 0): of the first of the four 64-bit words it yields, the upper 53 bits,
    divided by 2**53. (NumPy's generator steps its counter before the first block, hence the + 1.)
    All three arguments are in 0..2**64-1.
    """
    key = np.array([seed, sample_index], np.uint64)
    counter = np.array([position, 0, 0, 0], np.uint64)
    word = int(np.random.Philox(counter=counter, key=key).random_raw())
    return float((word >> 11) * 2.0**-53)
