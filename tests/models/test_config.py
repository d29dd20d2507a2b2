"""Model settings from GGUF metadata, and the size of the KV cache that follows from them."""

from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.models.config import ModelConfig


def metadata(**settings: Any) -> dict[str, Any]:
    base = {
        "general.architecture": "llama",
        "general.name": "test",
        "llama.block_count": 32,
        "llama.embedding_length": 4096,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.feed_forward_length": 14336,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 8192,
        "llama.vocab_size": 128_256,
    }
    return base | {f"llama.{k.replace('__', '.')}": v for k, v in settings.items()}


def test_settings_are_read() -> None:
    config = ModelConfig.from_gguf(metadata() | {"tokenizer.ggml.tokens": ["a"] * 1000})
    assert (config.num_layers, config.hidden_size, config.ffn_size) == (32, 4096, 14336)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 128)
    assert (config.vocab_size, config.tokenizer_size) == (128_256, 1000)
    assert (config.context_length, config.norm_eps) == (8192, 1e-5)
    assert config.attention_scale == 128**-0.5
    assert config.window(0) is None
    assert config.rope.rotary_dim == 128


def test_c116_head_dim_is_the_settings_own_if_given() -> None:
    """32 heads of 128 in a model of 2560 channels; KV sizing uses the same number."""
    config = ModelConfig.from_gguf(
        metadata(embedding_length=2560, attention__key_length=128, attention__value_length=128)
    )
    assert config.head_dim == 128
    assert config.rope.rotary_dim == 128
    assert config.kv_bytes_per_token(2) == 2 * 32 * 8 * 128 * 2


def test_c136_kv_bytes_of_qwen25_7b() -> None:
    config = ModelConfig.from_gguf(
        metadata(
            block_count=28,
            embedding_length=3584,
            attention__head_count=28,
            attention__head_count_kv=4,
        )
    )
    assert config.kv_bytes_per_token(2) == 57_344
    assert config.kv_bytes_per_token(2) * 3072 == 168 * 2**20


def test_c137_kv_bytes_of_llama3_8b() -> None:
    assert ModelConfig.from_gguf(metadata()).kv_bytes_per_token(2) == 131_072


def test_c140_kv_bytes_follow_head_dim_and_not_hidden_over_heads() -> None:
    config = ModelConfig.from_gguf(
        metadata(
            block_count=28,
            embedding_length=1024,
            attention__head_count=16,
            attention__key_length=128,
        )
    )
    assert config.kv_bytes_per_token(2) == 114_688
    assert f"{config.kv_bytes_per_token(2) * 40_960 / 2**30:.3f}" == "4.375"  # said to be 4.38


def test_a_number_per_layer_is_fine_if_all_are_the_same() -> None:
    per_layer = np.full(32, 8, np.int32)
    config = ModelConfig.from_gguf(metadata(attention__head_count_kv=per_layer))
    assert config.num_kv_heads == 8
    per_layer[3] = 4
    with pytest.raises(ConfigError, match=r"attention\.head_count_kv is \[8, 4\]: only one"):
        ModelConfig.from_gguf(metadata(attention__head_count_kv=per_layer))


def test_kv_heads_default_to_heads_and_the_vocabulary_to_the_tokens() -> None:
    settings = metadata() | {"tokenizer.ggml.tokens": ["a"] * 50}
    del settings["llama.attention.head_count_kv"]
    del settings["llama.vocab_size"]
    config = ModelConfig.from_gguf(settings)
    assert (config.num_kv_heads, config.vocab_size, config.tokenizer_size) == (32, 50, 50)


def test_a_window_shorter_than_the_context_counts() -> None:
    assert ModelConfig.from_gguf(metadata(attention__sliding_window=4096)).window(3) == 4096
    assert ModelConfig.from_gguf(metadata(attention__sliding_window=8192)).window(3) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expert_count": 8}, "expert_count is 8, which is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ({"attention__head_count": 30}, "4096 channels do not divide into 30 heads"),
        ({"attention__head_count_kv": 5}, "32 heads do not share 5 KV heads"),
        ({"attention__key_length": 128, "attention__value_length": 64}, "values of 64"),
        ({"rope__dimension_count": 256}, "rope turns 256 channels of heads that have 128"),
        ({"block_count": 0}, "num_layers is 0"),
        ({"block_count": 1.5}, "must be a whole number"),
        ({"block_count": None}, r"llama\.block_count is missing"),
        ({"context_length": "long"}, "only one number"),
    ],
)
def test_what_cannot_work_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_gguf(metadata(**settings))
