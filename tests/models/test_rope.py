"""C-119: every kind of rope scaling against formulas written out independently.

The expected numbers follow the published formulas with NumPy on whole vectors (the code under test
works pair by pair), and for a few pairs are worked out by hand.
"""

import math
from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.models.config import ModelConfig
from looseleaf.models.rope import (
    DividedScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    YarnScaling,
    scaling_from_huggingface,
)

DIM, BASE = 128, 10_000.0
POSITIONS = (0, 8191, 32768)


def plain(base: float = BASE, dim: int = DIM) -> Any:
    return 1.0 / base ** (np.arange(0, dim, 2) / dim)


def same_angles(config: RopeConfig, expected: Any) -> None:
    """At every position the rotated unit vectors agree to float64 rounding."""
    for position in POSITIONS:
        ours = np.exp(1j * position * np.array(config.frequencies()))
        np.testing.assert_allclose(ours, np.exp(1j * position * expected), atol=1e-9)


def test_c119_none_and_default_are_plain() -> None:
    for settings in (None, {}, {"rope_type": "default"}):
        scaling = scaling_from_huggingface(settings, 4096)
        assert scaling is None
        config = RopeConfig(BASE, DIM, scaling)
        same_angles(config, plain())
        assert config.attention_factor == 1.0


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_c119_linear_under_either_key(key: str) -> None:
    scaling = scaling_from_huggingface({key: "linear", "factor": 4.0}, 4096)
    assert scaling == LinearScaling(4.0)
    same_angles(RopeConfig(BASE, DIM, scaling), plain() / 4.0)


def test_c119_dynamic_is_fixed_at_the_longest_context() -> None:
    scaling = scaling_from_huggingface({"type": "dynamic", "factor": 4.0}, 2048)
    assert scaling == DynamicScaling(4.0, 2048)
    length = 4.0 * 2048
    base = BASE * (4.0 * length / 2048 - 3.0) ** (DIM / (DIM - 2))
    assert math.isclose(base, BASE * 13 ** (128 / 126))
    same_angles(RopeConfig(BASE, DIM, scaling), plain(base))


def test_c119_llama3() -> None:
    """Llama 3.1's own settings."""
    settings = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaling = scaling_from_huggingface(settings, 131_072)
    assert scaling == Llama3Scaling(8.0, 8192)
    frequencies = plain(500_000.0)
    wavelengths = 2 * np.pi / frequencies
    smooth = (8192 / wavelengths - 1.0) / (4.0 - 1.0)
    expected = np.where(
        wavelengths < 8192 / 4,
        frequencies,
        np.where(
            wavelengths > 8192,
            frequencies / 8,
            (1 - smooth) * frequencies / 8 + smooth * frequencies,
        ),
    )
    config = RopeConfig(500_000.0, DIM, scaling)
    same_angles(config, expected)
    assert config.attention_factor == 1.0
    # Pairs 0..28 turn 4 times or more in 8192 positions, 35.. less than once.
    ratios = np.array(config.frequencies()) / frequencies
    np.testing.assert_allclose(ratios[:29], 1)
    assert ((ratios[29:35] > 1 / 8) & (ratios[29:35] < 1)).all()
    np.testing.assert_allclose(ratios[35:], 1 / 8)
    # GGUF stores the same as a divisor for each pair.
    stored = RopeConfig(500_000.0, DIM, DividedScaling(tuple(1 / ratios)))
    same_angles(stored, expected)


def test_c119_yarn() -> None:
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    scaling = scaling_from_huggingface(settings, 131_072)
    assert scaling == YarnScaling(4.0, 32768)
    frequencies = plain(1_000_000.0)

    def pair(turns: float) -> float:
        return DIM * math.log(32768 / (turns * 2 * math.pi)) / (2 * math.log(1_000_000.0))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    assert (low, high) == (23, 40)
    ramp = np.clip((np.arange(DIM // 2) - low) / (high - low), 0, 1)
    expected = frequencies / 4 * ramp + frequencies * (1 - ramp)
    config = RopeConfig(1_000_000.0, DIM, scaling)
    same_angles(config, expected)
    assert math.isclose(config.attention_factor, 0.1 * math.log(4) + 1)


def test_c119_yarn_takes_its_attention_factor_from_the_settings() -> None:
    base = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    given = scaling_from_huggingface(base | {"attention_factor": 1.5}, 163_840)
    assert RopeConfig(BASE, 64, given).attention_factor == 1.5
    weighted = scaling_from_huggingface(base | {"mscale": 1.0, "mscale_all_dim": 0.707}, 163_840)
    expected = (0.1 * math.log(40) + 1) / (0.0707 * math.log(40) + 1)
    assert math.isclose(RopeConfig(BASE, 64, weighted).attention_factor, expected)
    smooth = scaling_from_huggingface(base | {"truncate": False}, 163_840)
    assert RopeConfig(BASE, 64, smooth).frequencies() != RopeConfig(BASE, 64, given).frequencies()


@pytest.mark.parametrize("settings", [{"type": "longrope"}, {"rope_type": "magic"}, {"factor": 2}])
def test_c119_an_unknown_type_is_an_error_that_names_it(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(settings.get("rope_type", settings.get("type")))):
        scaling_from_huggingface(settings, 4096)


def gguf(**settings: Any) -> dict[str, Any]:
    metadata = {
        "general.architecture": "llama",
        "general.name": "test",
        "llama.block_count": 2,
        "llama.embedding_length": 512,
        "llama.attention.head_count": 4,
        "llama.feed_forward_length": 1024,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 131_072,
        "llama.vocab_size": 1000,
    }
    return metadata | {f"llama.{k.replace('__', '.')}": v for k, v in settings.items()}


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, None),
        ({"rope__scaling__type": "none"}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}, LinearScaling(2.0)),
        ({"rope__scale_linear": 2.0}, LinearScaling(2.0)),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 32768,
            },
            YarnScaling(4.0, 32768),
        ),
    ],
)
def test_c119_gguf_settings(settings: dict[str, Any], scaling: Any) -> None:
    assert ModelConfig.from_gguf(gguf(**settings)).rope.scaling == scaling


def test_c119_gguf_factors_frequency_base_partial_rotation_and_magnitude() -> None:
    config = ModelConfig.from_gguf(
        gguf(
            rope__freq_base=500_000.0,
            rope__dimension_count=4,
            rope__scaling__attn_factor=1.25,
        ),
        rope_factors=[1.0, 8.0],
    )
    assert config.rope == RopeConfig(500_000.0, 4, DividedScaling((1.0, 8.0)), 1.25)
    assert config.rope.frequencies() == (1.0, 500_000.0**-0.5 / 8)
    assert config.rope.attention_factor == 1.25


def test_c119_gguf_unknown_type_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="'longrope' is not supported"):
        ModelConfig.from_gguf(gguf(rope__scaling__type="longrope", rope__scaling__factor=4.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RopeConfig(1e4, 7), "dimension is 7"),
        (lambda: RopeConfig(0.0, 8), "base is 0"),
        (lambda: RopeConfig(1e4, 8, LinearScaling(0.0)), "factor is 0"),
        (lambda: RopeConfig(1e4, 8, DividedScaling((1.0,))), "1 rope factors for 4 pairs"),
        (lambda: RopeConfig(1e4, 2, DividedScaling((0.0,))), "not a number above 0"),
    ],
)
def test_impossible_settings_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
