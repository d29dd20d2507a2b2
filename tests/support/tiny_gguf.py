"""A tiny random llama as a real GGUF file: 2 layers, 4 heads on 2 KV heads, byte-level tokens."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from looseleaf.compiled import compiled

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 2, 4, 2, 8
CONTEXT = 512

EXECUTOR = "reference" if compiled() is None else "native"
"""The one that is used by default."""

F16_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_DIM * {"reference": 4, "native": 2}[EXECUTOR]
"""By default, where the block size is not a multiple of 8: in float16 on the native executor, in
float32 on the reference."""

KV_BYTES_PER_TOKEN = (
    F16_BYTES_PER_TOKEN + {"reference": 0, "native": 2 * LAYERS * KV_HEADS * 4}[EXECUTOR]
)
"""By default, otherwise: on the native executor integers of 16 bits, and a scale for each head."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_tiny_model(
    path: Path,
    seed: int = 0,
    *,
    types: Sequence[gguf.GGMLQuantizationType] = (),
    head_dim: int = HEAD_DIM,
) -> Path:
    """Matrices are float32, or have `types` in turn."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [*byte_characters(), "<|start|>", "<|end|>", "he"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 3, 1])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    kinds = itertools.cycle(types)

    def add(name: str, *shape: int, scale: float = 0.3) -> None:
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        if types:
            kind = next(kinds)
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    add("token_embd.weight", len(tokens), HIDDEN, scale=1.0)
    for i in range(LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(HIDDEN, np.float32))
        add(f"blk.{i}.attn_q.weight", HEADS * head_dim, HIDDEN)
        add(f"blk.{i}.attn_k.weight", KV_HEADS * head_dim, HIDDEN)
        add(f"blk.{i}.attn_v.weight", KV_HEADS * head_dim, HIDDEN)
        add(f"blk.{i}.attn_output.weight", HIDDEN, HEADS * head_dim)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(HIDDEN, np.float32))
        add(f"blk.{i}.ffn_gate.weight", FFN, HIDDEN)
        add(f"blk.{i}.ffn_up.weight", FFN, HIDDEN)
        add(f"blk.{i}.ffn_down.weight", HIDDEN, FFN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
