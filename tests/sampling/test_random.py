"""The documented generator, written out again in plain Python."""

import numpy as np
import pytest

from looseleaf.sampling.random import uniform

MASK = (1 << 64) - 1


def philox4x64_10(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """Salmon et al., SC 2011, section 3.3."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (
            (second >> 64) ^ c1 ^ k0,
            second & MASK,
            (first >> 64) ^ c3 ^ k1,
            first & MASK,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(
    ("seed", "sample_index", "position"),
    [(0, 0, 0), (0, 0, 1), (42, 0, 17), (2**63 - 1, 127, 131_071), (7, 3, 2**32)],
)
def test_is_philox_as_documented(seed: int, sample_index: int, position: int) -> None:
    word = philox4x64_10((seed, sample_index), (position + 1, 0, 0, 0))[0]
    assert uniform(seed, sample_index, position) == (word >> 11) / 2**53


def test_differs_in_each_part_of_the_key_and_is_uniform() -> None:
    draws = [uniform(s, i, p) for s in range(10) for i in range(10) for p in range(20)]
    assert len(set(draws)) == len(draws)
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    # Chi-square with 19 degrees of freedom: above 43.8 once in a thousand.
    assert float((((counts - 100) ** 2) / 100).sum()) < 43.8
    assert all(0 <= draw < 1 for draw in draws)


def test_c053_a_draw_does_not_depend_on_earlier_draws() -> None:
    forwards = [uniform(5, 0, p) for p in range(50)]
    backwards = [uniform(5, 0, p) for p in reversed(range(50))]
    assert forwards == backwards[::-1]
