"""A model's shape from the header of a GGUF file."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError
from looseleaf.planner.families import FAMILIES
from looseleaf.planner.shapes import MOST_LAYERS, KVLayer, ModelShape, Parameters
from looseleaf.weights.gguf import GGUFFile, TensorInfo

# Architectures whose names differ from their `model_type` in a config.json.
_FAMILIES = {"gptneox": "gpt_neox", "gpt-oss": "gpt_oss", "deepseek2": "deepseek_v2"}


def shape_from_gguf(path: Path) -> ModelShape:
    """Parameters and bytes are those of the file's tensors. Raises GGUFError for a file that is
    not sound, ConfigError for a setting that is missing or that says nothing."""
    with GGUFFile(path) as file:
        return _Header(file.metadata, file.tensors, path).shape()


class _Header:
    def __init__(
        self, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], path: Path
    ) -> None:
        self.metadata, self.tensors, self.path = metadata, tensors, path
        self.architecture = str(metadata.get("general.architecture", "?"))
        self.num_layers = self.count("block_count", most=MOST_LAYERS)
        self.heads = max(self.counts("attention.head_count"), default=0)
        self.hidden = self.count("embedding_length")

    def counts(self, key: str, default: int | None = None) -> list[int]:
        """A whole number for each layer."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ConfigError(f"{self.path}: the setting {self.architecture}.{key} is missing")
        one = type(value) in (int, bool)
        numbers = [value] * self.num_layers if one else self._listed(key, value)
        if any(not 0 <= number < 2**50 for number in numbers):
            raise ConfigError(f"{self.path}: {self.architecture}.{key} is below zero or absurd")
        return [int(number) for number in numbers]

    def _listed(self, key: str, value: Any) -> list[int]:
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if (
            not isinstance(numbers, list)
            or len(numbers) != self.num_layers
            or any(type(number) not in (int, bool) for number in numbers)
        ):
            raise ConfigError(
                f"{self.path}: {self.architecture}.{key} is {value!s:.40}: it must be a whole "
                f"number, or one for each of the {self.num_layers} layers"
            )
        return numbers

    def count(self, key: str, default: int | None = None, most: int = 2**50) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ConfigError(f"{self.path}: the setting {self.architecture}.{key} is missing")
        if type(value) is not int or not 0 <= value <= most:
            raise ConfigError(
                f"{self.path}: {self.architecture}.{key} is {value!s:.40}, but it must be a whole "
                f"number up to {most}"
            )
        return value

    def shape(self) -> ModelShape:
        rank = self.count("attention.kv_lora_rank", 0)
        head_dim = self.count("attention.key_length", 0) or self.hidden // max(1, self.heads)
        value_dim = self.count("attention.value_length", head_dim)
        if rank:
            rope = self.count("rope.dimension_count")
            kv_layers = (KVLayer(1, rank + rope, 0),) * self.num_layers
            whole = self.count("attention.key_length_mla", head_dim)
            whole += self.count("attention.value_length_mla", value_dim)
            pair_flops = (2 * self.heads * (2 * rank + rope), 2 * self.heads * whole)
        else:
            pair_flops = (2 * self.heads * (head_dim + value_dim),) * 2
            kv_heads = self.counts("attention.head_count_kv", self.heads)
            kv_layers = tuple(
                KVLayer(heads, head_dim, value_dim, window)
                for heads, window in zip(kv_heads, self._windows(), strict=True)
                if heads
            )
        embedding = self.tensors.get("token_embd.weight")
        vocab = self.count("vocab_size", embedding.shape[0] if embedding else 0)
        parameters, active = self._parameters()
        notes = []
        if len(kv_layers) < self.num_layers:
            notes.append(f"{self.num_layers - len(kv_layers)} layers store no keys and values")
        if any(".ssm_" in name for name in self.tensors):
            notes.append("layers that keep a state are not sized: each request takes that too")
        return ModelShape(
            name=str(self.metadata.get("general.name") or self.path.stem),
            family=self.architecture,
            source=str(self.path),
            num_layers=self.num_layers,
            hidden_size=self.hidden,
            num_heads=self.heads,
            num_kv_heads=max((layer.num_heads for layer in kv_layers), default=0),
            head_dim=head_dim,
            ffn_size=max(self.counts("feed_forward_length", 0)),
            vocab_size=vocab,
            max_model_len=self.count("context_length"),
            kv_layers=kv_layers,
            parameters=parameters,
            active_parameters=active,
            pair_flops=pair_flops,
            dtype=self._dtype(),
            tied_embeddings="output.weight" not in self.tensors,
            num_experts=self.count("expert_count", 0),
            num_experts_per_token=self.count("expert_used_count", 0),
            stored_bytes=sum(info.nbytes for info in self.tensors.values()),
            kv_dtype="int16",  # as the native executor serves these files
            notes=tuple(notes),
        )

    def _windows(self) -> list[int | None]:
        window = self.count("attention.sliding_window", 0)
        if not 0 < window < self.count("context_length"):
            return [None] * self.num_layers
        key = "attention.sliding_window_pattern"
        pattern = self.metadata.get(f"{self.architecture}.{key}")
        if pattern is not None and type(pattern) is not int:
            windowed = self.counts(key)
        else:
            name = _FAMILIES.get(self.architecture, self.architecture)
            family = FAMILIES.get(name)
            # As `ModelConfig.from_gguf` has it, a window without a pattern is one in all layers.
            every = pattern or (family.window_every if family else 0) or 1
            windowed = [every == 1 or (i + 1) % every for i in range(self.num_layers)]
        return [window if has_window else None for has_window in windowed]

    def _parameters(self) -> tuple[Parameters, int]:
        """All of them, and how many of them work on each token."""
        sums = dict.fromkeys(Parameters._fields, 0)
        for name, info in self.tensors.items():
            sums[_part(name, info)] += prod(info.shape)
        total = Parameters(**sums)
        experts, used = self.count("expert_count", 0), self.count("expert_used_count", 0)
        idle = total.experts - total.experts * used // experts if experts else 0
        return total, total.total - idle

    def _dtype(self) -> str:
        """What most of the bytes are stored as."""
        sizes: dict[str, int] = {}
        for info in self.tensors.values():
            sizes[info.ggml_type] = sizes.get(info.ggml_type, 0) + info.nbytes
        return max(sizes, key=lambda name: sizes[name]).lower() if sizes else "f16"


def _part(name: str, info: TensorInfo) -> str:
    """Where `Parameters` counts a tensor."""
    words = set(name.split("."))
    if name == "token_embd.weight":
        return "embedding"
    if name == "output.weight":
        return "output"
    if len(info.shape) < 2 or "position_embd" in words:
        return "vectors"
    if "ffn_gate_inp" in words:
        return "router"
    if words & {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}:
        return "experts"
    if words & {"attn_k", "attn_v"}:
        return "kv"
    if words & {"attn_kv_a_mqa", "attn_q_a"}:
        return "replicated"
    return "linear"
