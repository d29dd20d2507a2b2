"""Rotary frequencies with the scalings that long-context models use.

A scaling turns the plain frequencies base ** (-2i / rotary_dim), one per rotated pair, into others
that hold for every position: keys are stored rotated, so a frequency may not depend on how long
the sequence happens to be. Everything here is float64, in radians per position.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looseleaf.core.errors import ConfigError

Frequencies = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`. Chen et al., 2023."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware: the base grows so that `factor` times the original context fits.

    Implementations that let the base follow the length of the sequence rotate stored keys and new
    queries differently; here it is fixed at the longest one, factor * original_context_length.
    """

    factor: float
    original_context_length: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Between the plain frequency and the plain one divided by `factor`, by how many turns the
    channel makes in the original context: plain above `beta_fast`, divided below `beta_slow`.
    Peng et al., 2023, section 3.2.

    `attention_factor` None means 0.1 * ln(factor) + 1 (section 3.4); `truncate` rounds the two
    borders outwards to whole channels.
    """

    factor: float
    original_context_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """By wavelength: plain below original / high_freq_factor, divided by `factor` above original /
    low_freq_factor, blended in between. Llama 3.1's."""

    factor: float
    original_context_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class DividedScaling:
    """Each frequency is divided by its own number: how GGUF files store Llama 3.1's scaling."""

    factors: tuple[float, ...]


Scaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | DividedScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The rotary embedding of a model: the first `rotary_dim` channels of each head turn.

    `magnitude` is a further factor on rotated queries and keys (GGUF's attn_factor).
    """

    base: float
    rotary_dim: int
    scaling: Scaling | None = None
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ConfigError(
                f"rope dimension is {self.rotary_dim}, but channels turn in pairs: it must be even "
                "and at least 2"
            )
        if not self.base > 0:
            raise ConfigError(f"rope base is {self.base}, but it must be above 0 (10000 is common)")
        factor = getattr(self.scaling, "factor", 1.0)
        if not 0 < factor < math.inf:
            raise ConfigError(f"rope scaling factor is {factor}, but it must be a number above 0")
        if isinstance(self.scaling, DividedScaling):
            if len(self.scaling.factors) != self.rotary_dim // 2:
                raise ConfigError(
                    f"{len(self.scaling.factors)} rope factors for {self.rotary_dim // 2} pairs of "
                    "channels: there must be one for each"
                )
            if not all(0 < f < math.inf for f in self.scaling.factors):
                raise ConfigError("a rope factor is not a number above 0: the file is damaged")

    @property
    def attention_factor(self) -> float:
        """What rotated queries and keys are multiplied by."""
        if not isinstance(self.scaling, YarnScaling):
            return self.magnitude
        factor = self.scaling.attention_factor
        return self.magnitude * (_mscale(self.scaling.factor) if factor is None else factor)

    def frequencies(self) -> Frequencies:
        """Radians per position of each pair of channels, `rotary_dim / 2` of them."""
        scaling, plain = self.scaling, self._plain(self.base)
        match scaling:
            case None:
                return plain
            case LinearScaling():
                return tuple(f / scaling.factor for f in plain)
            case DividedScaling():
                return tuple(f / d for f, d in zip(plain, scaling.factors, strict=True))
            case Llama3Scaling():
                return tuple(_llama3(f, scaling) for f in plain)
            case DynamicScaling():
                # With L the longest length, (factor * L / original) - (factor - 1) at
                # L = factor * original.
                growth = scaling.factor**2 - (scaling.factor - 1)
                if self.rotary_dim == 2:
                    return plain  # one pair, of frequency 1 for any base
                power = self.rotary_dim / (self.rotary_dim - 2)
                return self._plain(self.base * growth**power)
            case YarnScaling():
                return self._yarn(plain, scaling)

    def _plain(self, base: float) -> Frequencies:
        return tuple(base ** (-2 * i / self.rotary_dim) for i in range(self.rotary_dim // 2))

    def _yarn(self, plain: Frequencies, scaling: YarnScaling) -> Frequencies:
        def channel(turns: float) -> float:
            """Where a pair makes that many turns within the original context."""
            length = scaling.original_context_length / (turns * 2 * math.pi)
            return self.rotary_dim * math.log(length) / (2 * math.log(self.base))

        low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        width = high - low if high != low else 0.001
        result = []
        for i, frequency in enumerate(plain):
            ramp = min(1.0, max(0.0, (i - low) / width))
            result.append(frequency / scaling.factor * ramp + frequency * (1 - ramp))
        return tuple(result)


def scaling_from_huggingface(
    settings: Mapping[str, Any] | None, context_length: int
) -> Scaling | None:
    """The `rope_scaling` entry of a config.json; its kind is under "rope_type" or "type".

    `context_length` (max_position_embeddings) stands in for a missing original length. Raises
    `ConfigError` for a kind that is not known: without its scaling a model's output is wrong.
    """
    if not settings:
        return None
    kind = settings.get("rope_type", settings.get("type"))
    original = int(settings.get("original_max_position_embeddings") or context_length)
    factor = float(settings.get("factor") or context_length / original)
    match kind:
        case "default" | "none":
            return None
        case "linear":
            return LinearScaling(factor)
        case "dynamic":
            return DynamicScaling(factor, original)
        case "llama3":
            low = float(settings.get("low_freq_factor", 1.0))
            high = float(settings.get("high_freq_factor", 4.0))
            return Llama3Scaling(factor, original, low, high)
        case "yarn":
            attention_factor = settings.get("attention_factor")
            mscale, over = settings.get("mscale"), settings.get("mscale_all_dim")
            if attention_factor is None and mscale and over:
                attention_factor = _mscale(factor, mscale) / _mscale(factor, over)
            return YarnScaling(
                factor,
                original,
                float(settings.get("beta_fast") or 32.0),
                float(settings.get("beta_slow") or 1.0),
                None if attention_factor is None else float(attention_factor),
                bool(settings.get("truncate", True)),
            )
    raise unknown_scaling(kind)


def unknown_scaling(kind: object) -> ConfigError:
    """The error for a kind of scaling that is not among the above."""
    return ConfigError(
        f"rope scaling type {kind!r} is not supported; use a model with one of none, linear, "
        "dynamic, yarn, llama3"
    )


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    # How often the channel turns within the original context.
    turns = scaling.original_context_length * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
