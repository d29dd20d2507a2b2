"""A model's shape from a Hugging Face `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError
from looseleaf.planner.dtypes import weight_dtype
from looseleaf.planner.families import ENCODERS, FAMILIES, HYBRID, NO_KV, Family
from looseleaf.planner.shapes import MOST_LAYERS, KVLayer, ModelShape, Parameters

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_MAX_BYTES = 16 * 2**20


def shape_from_file(file: Path) -> ModelShape:
    """Of a config.json, and what the weights beside it take if there are any.

    Raises ConfigError for whatever is wrong with it.
    """
    shape = shape_from_config(_read(file), file.resolve().parent.name or "model", str(file))
    stored = _stored_bytes(file.parent)
    return replace(shape, stored_bytes=stored)


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{file} is larger than {_MAX_BYTES} bytes: it is no config.json")
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not JSON: download it again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no JSON object: it is no model's config.json")
    return found


def _stored_bytes(folder: Path) -> int | None:
    """What the weights in the folder take."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            size = json.loads(index.read_bytes())["metadata"]["total_size"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            size = None
        if type(size) is int and size > 0:
            return size
    files = list(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) or None


def shape_from_config(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    """The shape that these settings describe. Raises ConfigError for one that is missing, and for
    models whose KV cannot be told from them."""
    merged = dict(config)
    for key in _NESTED:
        if isinstance(inner := config.get(key), dict):
            outer = {k: v for k, v in config.items() if k not in _NESTED and k != "model_type"}
            merged = {**outer, "model_type": config.get("model_type"), **inner}
            break
    return _Config(merged, name, source, has_more=merged.keys() != config.keys()).shape()


class _Config:
    """Typed access to the settings of one model, and what follows from them."""

    def __init__(
        self, settings: Mapping[str, Any], name: str, source: str, *, has_more: bool
    ) -> None:
        self.name = name
        self.source = source
        self.model_type = str(settings.get("model_type"))
        self._refuse()
        known = FAMILIES.get(self.model_type)
        self.family: Family = known or Family()
        self.settings = {**self.family.defaults, **settings}
        self.notes: list[str] = []
        if known is None:
            self.notes.append(
                f"model_type {self.model_type[:40]!r} is not known: its KV is taken from heads and "
                "layers as for llama, and its number of parameters is a guess"
            )
        if has_more:
            self.notes.append("the text model alone: encoders of images or sound are not counted")

        self.num_layers = self.count("num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS)
        self.hidden = self.count("hidden_size", "n_embd", "d_model")
        self.heads = self.count("num_attention_heads", "n_head", "n_heads")
        self.kv_heads = self._kv_heads()
        if self.kv_heads and self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} KV heads evenly: is "
                "num_key_value_heads right?"
            )
        self.head_dim = self.count("head_dim", default=0) or self._divided()
        self.ffn = self.count(
            "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * self.hidden
        )
        self.vocab = self.count("vocab_size")
        self.max_len = self.count(
            "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=2048
        )
        self.latent_rank = self.count("kv_lora_rank", default=0)
        self.rope_dim = self.count("qk_rope_head_dim", default=0)
        self.tied = bool(self.settings.get("tie_word_embeddings", self.family.tied))
        self.experts = self.count("n_routed_experts", "num_local_experts", "num_experts", default=0)
        self.experts_per_token = self.count("num_experts_per_tok", "experts_per_token", default=0)

    def _refuse(self) -> None:
        kinds = self.model_type
        if kinds in NO_KV or kinds in HYBRID:
            raise ConfigError(
                f"{self.name}: {kinds} has layers that keep a state instead of keys and values, "
                "which are not sized: choose a model whose layers all attend"
            )
        if kinds in ENCODERS:
            raise ConfigError(f"{self.name}: {kinds} is no decoder: it generates with no KV cache")

    def count(self, *keys: str, default: int | None = None, most: int = 2**50) -> int:
        """The first of these settings that is there and not null."""
        for key in keys:
            value = self.settings.get(key)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= most:
                raise ConfigError(
                    f"{self.name}: {key} is {repr(value)[:40]}, but it must be a whole number "
                    f"up to {most}"
                )
            return value
        if default is None:
            raise ConfigError(f"{self.name}: {keys[0]} is missing from {self.source}")
        return default

    def _kv_heads(self) -> int:
        if self.model_type == "falcon" and not self.settings.get("new_decoder_architecture"):
            return 1 if self.settings.get("multi_query", True) else self.heads
        return self.count("num_key_value_heads", "num_kv_heads", default=self.heads)

    def _divided(self) -> int:
        head_dim, rest = divmod(self.hidden, max(1, self.heads))
        if rest:
            raise ConfigError(
                f"{self.name}: hidden_size {self.hidden} does not divide into {self.heads} heads, "
                "and head_dim is missing"
            )
        return head_dim

    def shape(self) -> ModelShape:
        if self.latent_rank:
            kv_layers = (KVLayer(1, self.latent_rank + self.rope_dim, 0),) * self.num_layers
        else:
            kv_layers = tuple(
                KVLayer(self.kv_heads, self.head_dim, self.head_dim, window)
                for window in self._windows()
            )
        parameters = self._parameters()
        idle = 0
        if self.experts:
            share = min(self.experts_per_token or 1, self.experts)
            idle = parameters.experts - parameters.experts * share // self.experts
        return ModelShape(
            name=self.name,
            family=self.model_type,
            source=self.source,
            num_layers=self.num_layers,
            hidden_size=self.hidden,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn_size=self.ffn,
            vocab_size=self.vocab,
            max_model_len=self.max_len,
            kv_layers=kv_layers,
            parameters=parameters,
            active_parameters=parameters.total - idle,
            pair_flops=self._pair_flops(),
            dtype=self._dtype(),
            tied_embeddings=self.tied,
            num_experts=self.experts,
            num_experts_per_token=self.experts_per_token,
            notes=tuple(self.notes),
        )

    def _pair_flops(self) -> tuple[int, int]:
        if not self.latent_rank:
            flops = 4 * self.heads * self.head_dim
            return flops, flops
        # One query works on the latent itself; for more, keys and values are made of it first.
        latent = 2 * self.latent_rank + self.rope_dim
        whole = self.count("qk_nope_head_dim") + self.rope_dim + self.count("v_head_dim")
        return 2 * self.heads * latent, 2 * self.heads * whole

    def _windows(self) -> list[int | None]:
        """Of each layer."""
        chunk = self.count("attention_chunk_size", default=0)
        window = self.count("sliding_window", default=chunk)
        kinds = self.settings.get("layer_types")
        if isinstance(kinds, list):
            if len(kinds) != self.num_layers:
                raise ConfigError(
                    f"{self.name}: layer_types names {len(kinds)} layers of {self.num_layers}"
                )
            known = {
                "full_attention": 0,
                "sliding_attention": window,
                "chunked_attention": chunk,
            }
            if unknown := [kind for kind in kinds if type(kind) is not str or kind not in known]:
                raise ConfigError(
                    f"{self.name}: layers of the kind {unknown[0]!s:.40} are not sized: choose a "
                    "model whose layers all attend"
                )
            sizes = [known[kind] for kind in kinds]
        elif self.model_type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"):
            first = self.count("max_window_layers", default=self.num_layers)
            used = self.settings.get("use_sliding_window") and window
            sizes = [window if used and i >= first else 0 for i in range(self.num_layers)]
        else:
            every = self.family.window_every
            if every > 1:
                every = self.count("sliding_window_pattern", default=every)
            sizes = [
                window if every == 1 or (every and (i + 1) % every) else 0
                for i in range(self.num_layers)
            ]
        return [size if 0 < size < self.max_len else None for size in sizes]

    def _dtype(self) -> str:
        quantized = self.settings.get("quantization_config")
        if isinstance(quantized, dict):
            return self._quantized(quantized)
        name = self.settings.get("torch_dtype") or self.settings.get("dtype") or "bf16"
        try:
            return weight_dtype(str(name))
        except ConfigError:
            self.notes.append(f"dtype {name!s:.40} is not known: taken as 16 bits")
            return "bf16"

    def _quantized(self, settings: Mapping[str, Any]) -> str:
        method = str(settings.get("quant_method", "")).lower()
        bits = settings.get("bits", settings.get("w_bit"))
        if method in ("fp8", "mxfp4"):
            return method
        if method in ("awq", "gptq"):
            return "int8" if bits == 8 else "int4"
        if method == "bitsandbytes":
            return "int4" if settings.get("load_in_4bit") else "int8"
        groups = settings.get("config_groups")
        if method == "compressed-tensors" and isinstance(groups, dict):
            for group in groups.values():
                weights = group.get("weights") if isinstance(group, dict) else None
                if isinstance(weights, dict) and weights.get("num_bits") == 4:
                    return "int4"
                if isinstance(weights, dict) and weights.get("num_bits") == 8:
                    return "fp8" if weights.get("type") == "float" else "int8"
        self.notes.append(
            f"quantization {method[:40]!r} is not known: weights are taken as 16 bits"
        )
        return "bf16"

    def _parameters(self) -> Parameters:
        family, h = self.family, self.hidden
        width = self.count("word_embed_proj_dim", default=h)
        embedding = self.vocab * width
        norm = h * (2 if family.norm_bias else 1)
        vectors = norm * (1 + family.norms * self.num_layers)
        linear = 0 if width == h else 2 * width * h
        if family.extra_positions is not None:
            vectors += (self.max_len + family.extra_positions) * h
        if family.head_bias:
            vectors += self.vocab
        attention = self._latent_attention() if self.latent_rank else self._attention()
        parts = [Parameters(0, 0, 0, 0, 0), *[attention] * self.num_layers]
        parts += [self._ffn(i) for i in range(self.num_layers)]
        summed = [sum(column) for column in zip(*parts, strict=True)]
        total = Parameters(*summed)
        return total._replace(
            embedding=embedding,
            output=0 if self.tied else embedding,
            linear=total.linear + linear,
            vectors=total.vectors + vectors,
        )

    def _attention(self) -> Parameters:
        """Of one layer."""
        family = self.family
        queries, keys = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        bias = bool(self.settings.get("attention_bias"))
        vectors = 0
        if family.qkv_bias or bias:
            vectors += queries + keys
        if family.output_bias or (bias and self.model_type != "glm4_moe"):
            vectors += self.hidden
        if family.head_norms:
            vectors += 2 * self.head_dim
        return Parameters(0, 0, 2 * self.hidden * queries, self.hidden * keys, vectors)

    def _latent_attention(self) -> Parameters:
        """Of one layer (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
        plain = self.count("qk_nope_head_dim")
        value = self.count("v_head_dim")
        rank = self.count("q_lora_rank", default=0)
        query = self.heads * (plain + self.rope_dim)
        down = self.hidden * (self.latent_rank + self.rope_dim + rank)
        linear = (rank or self.hidden) * query
        linear += self.latent_rank * self.heads * (plain + value) + self.heads * value * self.hidden
        return Parameters(0, 0, linear, 0, self.latent_rank + rank, replicated=down)

    def _ffn(self, layer: int) -> Parameters:
        """Of one layer."""
        matrices = 3 if self.family.gated else 2
        if not self.experts or self._is_dense(layer):
            width = self.count("intermediate_size_mlp", default=self.ffn)
            bias = width + self.hidden if self.family.ffn_bias else 0
            return Parameters(0, 0, matrices * self.hidden * width, 0, bias)
        size = self.count("moe_intermediate_size", default=self.ffn)
        shared = self.count("n_shared_experts", default=0) * size
        shared += self.count("shared_expert_intermediate_size", default=0)
        shared += size if self.family.shared_expert else 0
        experts = self.experts * matrices * self.hidden * size
        return Parameters(
            embedding=0,
            output=0,
            linear=matrices * self.hidden * shared,
            kv=0,
            vectors=self.experts if self.family.router_bias else 0,
            router=self.hidden * self.experts,
            experts=experts,
        )

    def _is_dense(self, layer: int) -> bool:
        if layer < self.count("first_k_dense_replace", default=0):
            return True
        only = self.settings.get("mlp_only_layers")
        if isinstance(only, list) and layer in only:
            return True
        step = self.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        return bool(step > 1 and (layer + 1) % step)
