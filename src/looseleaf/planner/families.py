"""What a Hugging Face `config.json` leaves unsaid, by its `model_type`."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Family(NamedTuple):
    """`gated` FFNs have three matrices, others two. `norms` are those of a layer, besides those of
    queries and keys (`head_norms`). `window_every` n: every n-th layer sees everything, the others
    a window; 1 is a window in all layers, 0 in none. `defaults` are of settings."""

    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    norms: int = 2
    norm_bias: bool = False
    head_norms: bool = False
    head_bias: bool = False
    router_bias: bool = False
    shared_expert: bool = False
    """One more expert for all tokens, of the size of the others."""
    tied: bool = False
    extra_positions: int | None = None
    """Learned positions beyond `max_position_embeddings`; None if positions are not learned."""
    window_every: int = 0
    defaults: Mapping[str, Any] = {}


_LLAMAS = ("llama", "granite", "olmo2", "internlm2", "seed_oss", "smollm3", "deepseek_v2")
_PLAIN = Family()
_WINDOWED = Family(window_every=1)
_BIASED = Family(
    gated=False, qkv_bias=True, output_bias=True, ffn_bias=True, norm_bias=True, tied=True
)
_GEMMA3 = Family(
    norms=4,
    head_norms=True,
    tied=True,
    window_every=6,
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_LLAMAS, _PLAIN),
    **dict.fromkeys(("mistral", "mixtral", "phi3"), _WINDOWED),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), Family(router_bias=True)),
    **dict.fromkeys(("qwen2", "qwen2_moe"), Family(qkv_bias=True)),
    **dict.fromkeys(("qwen3", "qwen3_moe"), Family(head_norms=True)),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA3),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(norms=4, tied=True, window_every=2, defaults={"head_dim": 256}),
    "phi": _BIASED._replace(norms=1, tied=False, head_bias=True),
    "phimoe": Family(norm_bias=True, head_bias=True, window_every=1),
    "llama4_text": Family(window_every=4, shared_expert=True),
    "gpt_oss": Family(window_every=2, qkv_bias=True, output_bias=True),
    "glm4": Family(norms=4, qkv_bias=True),
    "glm4_moe": Family(qkv_bias=True, router_bias=True),
    "cohere": Family(norms=1, tied=True),
    "cohere2": Family(norms=1, tied=True, window_every=4),
    "starcoder2": _BIASED._replace(window_every=1),
    "falcon": Family(gated=False, norms=1, norm_bias=True, tied=True),
    "opt": _BIASED._replace(extra_positions=2),
    "gpt2": _BIASED._replace(extra_positions=0),
    "gpt_neox": _BIASED._replace(tied=False),
}

NO_KV = ("mamba", "mamba2", "rwkv", "rwkv7", "falcon_mamba")
"""Families whose layers keep a state and no KV."""

HYBRID = (
    *("jamba", "bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2"),
    *("qwen3_next", "kimi_linear", "minimax"),
)
"""Families of which some layers do."""

ENCODERS = ("t5", "bart", "mbart", "whisper", "bert", "roberta", "xlm-roberta", "modernbert")
