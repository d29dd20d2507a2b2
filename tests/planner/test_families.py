"""Other families' settings, as their config.json have them, against published numbers."""

from typing import Any

import pytest

from looseleaf.planner.hf_config import shape_from_config

GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "intermediate_size": 2880,
    "vocab_size": 201_088,
    "sliding_window": 128,
    "attention_bias": True,
    "max_position_embeddings": 131_072,
    "quantization_config": {"quant_method": "mxfp4"},
}
LLAMA_4: dict[str, Any] = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
    "vocab_size": 202_048,
    "max_position_embeddings": 1_048_576,
}
CONFIGS: dict[str, tuple[float, float | None, int, dict[str, Any]]] = {
    # name: parameters and active ones in billions, layers with a window, settings
    "gpt-oss-20b": (20.91, 3.61, 12, {**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt-oss-120b": (
        116.83,
        5.13,
        18,
        {**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    ),
    "llama-4-scout": (
        108.64 - 0.87,  # without the vision encoder
        17.2,
        36,
        {**LLAMA_4, "num_local_experts": 16, "interleave_moe_layer_step": 1},
    ),
    "llama-4-maverick": (
        400.7,
        17.2,
        36,
        {**LLAMA_4, "num_local_experts": 128, "interleave_moe_layer_step": 2},
    ),
    "glm-4.5-air": (
        106.85,
        None,
        0,
        {
            "model_type": "glm4_moe",
            "hidden_size": 4096,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "intermediate_size": 10_944,
            "vocab_size": 151_552,
            "attention_bias": True,
            "max_position_embeddings": 131_072,
        },
    ),
    "kimi-k2": (
        1026.4,
        32.9,
        0,
        {
            "model_type": "kimi_k2",
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "intermediate_size": 18_432,
            "vocab_size": 163_840,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "max_position_embeddings": 131_072,
        },
    ),
    "phi-3.5-moe": (
        41.87,
        6.6,
        0,
        {
            "model_type": "phimoe",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "intermediate_size": 6400,
            "vocab_size": 32_064,
            "attention_bias": True,
            "sliding_window": 131_072,
            "max_position_embeddings": 131_072,
        },
    ),
    "qwen1.5-moe-a2.7b": (
        14.316,
        2.7,
        0,
        {
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "vocab_size": 151_936,
            "max_position_embeddings": 8192,
        },
    ),
    "gpt2": (
        0.12444,
        None,
        0,
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50_257,
        },
    ),
    "gpt-neox-20b": (
        20.55,
        None,
        0,
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24_576,
            "vocab_size": 50_432,
            "max_position_embeddings": 2048,
        },
    ),
    "falcon-7b": (
        6.92,
        None,
        0,
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "vocab_size": 65_024,
        },
    ),
    "falcon-40b": (
        41.3,
        None,
        0,
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65_024,
        },
    ),
    "opt-350m": (
        0.3312,
        None,
        0,
        {
            "model_type": "opt",
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "ffn_dim": 4096,
            "vocab_size": 50_272,
            "word_embed_proj_dim": 512,
            "max_position_embeddings": 2048,
        },
    ),
    "glm-4-9b-0414": (
        9.4,
        None,
        0,
        {
            "model_type": "glm4",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "intermediate_size": 13_696,
            "vocab_size": 151_552,
            "attention_bias": True,
            "max_position_embeddings": 32_768,
        },
    ),
    "command-r": (
        34.98,
        None,
        0,
        {
            "model_type": "cohere",
            "hidden_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "intermediate_size": 22_528,
            "vocab_size": 256_000,
            "max_position_embeddings": 131_072,
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_published_numbers(name: str) -> None:
    billions, active, num_windows, settings = CONFIGS[name]
    shape = shape_from_config(settings, name, "test")
    assert shape.parameters.total / 1e9 == pytest.approx(billions, rel=0.01)
    if active is not None:
        # Some leave the embedding, or also the output, out of what works on a token.
        less = [0, shape.parameters.embedding, shape.parameters.embedding + shape.parameters.output]
        counts = [(shape.active_parameters - n) / 1e9 for n in less]
        assert any(count == pytest.approx(active, rel=0.01) for count in counts)
    assert shape.num_window_layers == num_windows
    assert not shape.notes


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("gpt-oss-120b", 73_728),
        ("falcon-7b", 2 * 32 * 64 * 2),  # one KV head for 71
        ("falcon-40b", 2 * 60 * 8 * 64 * 2),
        ("kimi-k2", 70_272),
        ("glm-4-9b-0414", 40_960),
    ],
)
def test_the_kv_of_a_token(name: str, kv_bytes: int) -> None:
    shape = shape_from_config(CONFIGS[name][3], name, "test")
    assert shape.kv_bytes_per_token("bf16") == kv_bytes


def test_experts_alone_are_quantized_in_mxfp4() -> None:
    """The checkpoint of gpt-oss-120b takes 60.8 GiB (OpenAI, gpt-oss model card, section 2)."""
    shape = shape_from_config(CONFIGS["gpt-oss-120b"][3], "gpt-oss-120b", "test")
    assert shape.dtype == "mxfp4"
    assert shape.parameters.bytes("mxfp4") / 2**30 == pytest.approx(60.8, rel=0.01)
