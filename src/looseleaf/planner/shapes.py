"""A model's shape: all that its sizes follow from, and nothing of its arithmetic."""

from dataclasses import dataclass
from typing import NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.planner.dtypes import FLOAT_BITS, GGML_BITS, QUANTIZED_BITS, kv_bytes

MOST_LAYERS = 10_000
"""More are a damaged file."""

_LEAST = {
    "num_layers": 1,
    "hidden_size": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 1,
    "vocab_size": 1,
    "max_model_len": 2,
}


class KVLayer(NamedTuple):
    """What one layer stores of a token: keys and values of some heads. A latent that stands for
    all heads is one head's keys, and no values. `window` is how many positions a query sees, its
    own included; None is all."""

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    def bytes_per_token(self, dtype: str, tensor_parallel_size: int = 1) -> float:
        """On each device; heads that cannot be divided further are on all of them."""
        heads = max(1, self.num_heads // tensor_parallel_size)
        return heads * (kv_bytes(dtype, self.key_dim) + kv_bytes(dtype, self.value_dim))


class Parameters(NamedTuple):
    """How many numbers a model has, by how they are stored and divided among devices.

    `embedding` and `output` are split by tokens, `linear` and `experts` evenly; `kv` (projections
    to keys and values) among KV heads. `router`, `replicated` (linear too) and `vectors` (norms,
    biases, learned positions) are whole on each. `output` is 0 where the embedding serves as it.
    """

    embedding: int
    output: int
    linear: int
    kv: int
    vectors: int
    replicated: int = 0
    router: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    def bytes(self, dtype: str, tensor_parallel_size: int = 1, num_kv_heads: int = 1) -> int:
        """On each device, stored as `dtype` (a name of `WEIGHT_DTYPES`)."""
        kv_parts = min(tensor_parallel_size, num_kv_heads)
        split = tensor_parallel_size
        linear = self.linear / split + self.kv / kv_parts + self.replicated
        rows = (self.embedding + self.output) / split
        experts = self.experts / split
        if dtype in GGML_BITS:
            matrices = linear + rows + experts + self.router
            return round((matrices * GGML_BITS[dtype] + self.vectors * 32) / 8)
        wide = FLOAT_BITS.get(dtype, 16.0)
        narrow = QUANTIZED_BITS.get(dtype, wide)
        bits = (rows + self.router + self.vectors) * wide + experts * narrow
        return round((bits + linear * (wide if dtype == "mxfp4" else narrow)) / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """`source` says where the figures are from, `notes` what they leave out.

    `kv_layers` are the layers that store keys and values. `dtype` is how the weights are published,
    `stored_bytes` what they take where they are at hand, `kv_dtype` how keys and values are stored
    unless told otherwise. `active_parameters` work on each token.
    `pair_flops` are those of one query and one key in a layer, all heads together: where a sequence
    computes one token, and where it computes more.
    """

    name: str
    family: str
    source: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_model_len: int
    kv_layers: tuple[KVLayer, ...]
    parameters: Parameters
    active_parameters: int
    pair_flops: tuple[int, int]
    dtype: str
    tied_embeddings: bool = False
    num_experts: int = 0
    num_experts_per_token: int = 0
    stored_bytes: int | None = None
    kv_dtype: str = "bf16"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, least in _LEAST.items():
            if getattr(self, field) < least:
                raise ConfigError(
                    f"{self.name}: {field} is {getattr(self, field)}, but it must be at least "
                    f"{least}"
                )
        if not self.kv_layers:
            raise ConfigError(f"{self.name}: no layer stores keys and values")

    @property
    def is_latent(self) -> bool:
        """Whether a latent stands for the keys and values of all heads."""
        return self.kv_layers[0].value_dim == 0

    @property
    def num_window_layers(self) -> int:
        return sum(layer.window is not None for layer in self.kv_layers)

    def kv_bytes_per_token(self, dtype: str, tensor_parallel_size: int = 1) -> float:
        """In all layers, on each device."""
        return sum(layer.bytes_per_token(dtype, tensor_parallel_size) for layer in self.kv_layers)
