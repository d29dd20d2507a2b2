"""A model's settings, whatever file they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looseleaf.core.errors import ConfigError
from looseleaf.models.rope import (
    DividedScaling,
    LinearScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
    unknown_scaling,
)

__all__ = ["ModelConfig", "RopeConfig"]

# Settings that change the arithmetic in ways that no page can express yet, and the values at which
# they change nothing.
_UNSUPPORTED: dict[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings of a decoder.

    `vocab_size` is the number of rows of the output, `tokenizer_size` that of tokens there are:
    ids from there on are padding and never sampled. `attention_scale` multiplies q @ k.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    norm_eps: float
    vocab_size: int
    tokenizer_size: int
    context_length: int
    rope: RopeConfig
    attention_scale: float
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            value = getattr(self, field)
            if value < 1:
                raise ConfigError(f"{self.name}: {field} is {value}, but it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: {self.num_heads} heads do not share {self.num_kv_heads} KV heads "
                "evenly: the first must be a multiple of the second"
            )
        if self.rope.rotary_dim > self.head_dim:
            raise ConfigError(
                f"{self.name}: rope turns {self.rope.rotary_dim} channels of heads that have "
                f"{self.head_dim}: it can turn at most all of them"
            )

    def window(self, layer: int) -> int | None:
        """How many positions a query of this layer sees, its own included; None is all."""
        return self.sliding_window

    def kv_bytes_per_token(self, bytes_per_element: int, scale_bytes: int = 0) -> int:
        """Memory of one token's keys and values in all layers: of numbers, and of one scale for
        each head's keys and each head's values."""
        head_bytes = self.head_dim * bytes_per_element + scale_bytes
        return 2 * self.num_layers * self.num_kv_heads * head_bytes

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], *, rope_factors: Sequence[float] | None = None
    ) -> "ModelConfig":
        """Settings from GGUF metadata; `rope_factors` is the tensor `rope_freqs.weight`, if any.

        Raises `ConfigError` for a missing setting and for one that would change the results in a
        way that is not supported.
        """
        read = _Settings(metadata)
        for key, neutral in _UNSUPPORTED.items():
            value = read.number(key, neutral[0])
            if value not in neutral:
                raise ConfigError(f"{read.name}: {key} is {value:g}, which is not supported")
        hidden_size, num_heads = read.count("embedding_length"), read.count("attention.head_count")
        head_dim = read.count("attention.key_length", 0)
        if not head_dim:
            head_dim, rest = divmod(hidden_size, max(1, num_heads))
            if rest:
                raise ConfigError(
                    f"{read.name}: {hidden_size} channels do not divide into {num_heads} heads, "
                    "and attention.key_length is missing"
                )
        value_dim = read.count("attention.value_length", head_dim)
        if value_dim != head_dim:
            raise ConfigError(
                f"{read.name}: heads of {head_dim} with values of {value_dim} are not supported: "
                "both must have one size"
            )
        context_length = read.count("context_length")
        window = read.count("attention.sliding_window", 0)
        num_tokens = len(metadata.get("tokenizer.ggml.tokens", ()))
        vocab_size = read.count("vocab_size", num_tokens or None)
        return cls(
            name=read.name,
            num_layers=read.count("block_count"),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=read.count("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            ffn_size=read.count("feed_forward_length"),
            norm_eps=read.number("attention.layer_norm_rms_epsilon", None),
            vocab_size=vocab_size,
            tokenizer_size=min(num_tokens or vocab_size, vocab_size),
            context_length=context_length,
            rope=RopeConfig(
                read.number("rope.freq_base", 10000.0),
                read.count("rope.dimension_count", head_dim),
                _scaling(read, rope_factors, context_length),
                read.number("rope.scaling.attn_factor", 1.0),
            ),
            attention_scale=read.number("attention.scale", 0.0) or head_dim**-0.5,
            sliding_window=window if 0 < window < context_length else None,
        )


class _Settings:
    """Typed access to the settings of one architecture."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", "?"))
        self.name = str(metadata.get("general.name", "model"))

    def get(self, key: str) -> Any:
        return self._metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: float | None) -> float:
        """A number, or a number per layer if all are the same."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{self.name}: the setting {self.architecture}.{key} is missing: "
                    "convert the model to GGUF again"
                )
            return default
        values = np.ravel(value)
        if values.dtype.kind not in "iuf" or not len(values) or (values != values[0]).any():
            different = list(dict.fromkeys(values.tolist()))
            raise ConfigError(
                f"{self.name}: {self.architecture}.{key} is {different!s:.60}: only one number, "
                "the same for all layers, is supported"
            )
        return float(values[0])

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or value < 0:
            raise ConfigError(f"{self.name}: {key} is {value:g}, but it must be a whole number")
        return int(value)


def _scaling(
    read: _Settings, rope_factors: Sequence[float] | None, context_length: int
) -> Scaling | None:
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 0.0))
    kind = read.get("rope.scaling.type") or ("linear" if factor else "none")
    scaling: Scaling | None = None
    if kind == "yarn":
        scaling = YarnScaling(
            factor or 1.0,
            read.count("rope.scaling.original_context_length", context_length),
            read.number("rope.scaling.yarn_beta_fast", 32.0),
            read.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    elif kind == "linear":
        scaling = LinearScaling(factor) if factor not in (0.0, 1.0) else None
    elif kind != "none":
        raise unknown_scaling(kind)
    if rope_factors is None:
        return scaling
    if scaling is not None:
        raise ConfigError(
            f"{read.name}: rope scaling {kind!r} together with rope_freqs.weight is not supported"
        )
    return DividedScaling(tuple(float(f) for f in rope_factors))
