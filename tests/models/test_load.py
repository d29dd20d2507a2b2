"""Loading: a GGUF file written by the `gguf` package comes back as the model it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.models.load import load_model, load_program, load_weights, weight_bytes
from looseleaf.models.registry import architecture, supported
from looseleaf.weights.gguf import GGUFFile

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, VOCAB = 4, 2, 8, 32, 64, 96


def interleaved(weight: Any, num_heads: int, rotated: int) -> Any:
    """How GGUF orders rows: within a head's rotated rows, row i beside row i + rotated / 2."""
    result = weight.copy()
    half = rotated // 2
    for start in range(0, num_heads * HEAD_DIM, HEAD_DIM):
        for i in range(half):
            result[start + 2 * i] = weight[start + i]
            result[start + 2 * i + 1] = weight[start + i + half]
    return result


def write(
    path: Path,
    *,
    arch: str = "llama",
    rotated: int = HEAD_DIM,
    tied: bool = True,
    extra: dict[str, Any] | None = None,
    leave_out: str | None = None,
) -> dict[str, Any]:
    """Write a tiny model; returns its weights in the order that pages expect."""
    import gguf

    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_q.bias": (HEADS * HEAD_DIM,),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(rotated)
    writer.add_vocab_size(VOCAB)
    stored = weights | (extra or {})
    for name, weight in stored.items():
        if name == leave_out:
            continue
        heads = HEADS if "attn_q" in name else KV_HEADS if "attn_k" in name else 0
        row_order = interleaved(weight, heads, rotated) if heads else weight
        writer.add_tensor(name, row_order)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.mark.parametrize("rotated", [HEAD_DIM, 4])
def test_c114_rows_of_queries_and_keys_are_put_back(rotated: int, tmp_path: Path) -> None:
    weights = write(tmp_path / "m.gguf", rotated=rotated)
    model = load_model(tmp_path / "m.gguf")
    assert model.weights.keys() == weights.keys()
    for name, weight in weights.items():
        assert np.array_equal(model.weights[name], weight), name
    assert weight_bytes(model.weights) == 4 * model.program.num_parameters
    assert model.config.name == "tiny"


def test_program_and_weights_can_be_read_apart(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tied=False)
    with GGUFFile(tmp_path / "m.gguf") as file:
        config, program = load_program(file)
        weights = load_weights(file, config, program)
    assert "linear(b18, output.weight)" in str(program)
    assert all(weights[name].shape == shape for name, shape in program.weights)


def test_tied_embeddings_serve_as_output(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    program = load_model(tmp_path / "m.gguf").program
    assert program.ops[-2].weight == "token_embd.weight"  # type: ignore[union-attr]


def test_c117_an_output_that_is_there_is_used(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tied=False)
    program = load_model(tmp_path / "m.gguf").program
    assert program.ops[-2].weight == "output.weight"  # type: ignore[union-attr]


def test_c119_rope_factors_are_taken_from_their_tensor(tmp_path: Path) -> None:
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    write(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    rope = load_model(tmp_path / "m.gguf").config.rope
    ratios = np.array([10_000.0 ** (-i / 4) for i in range(4)]) / rope.frequencies()
    np.testing.assert_allclose(ratios, factors)


def test_c124_an_unsupported_architecture_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", arch="mamba")
    with pytest.raises(ConfigError, match=r"architecture 'mamba' is not supported.*: llama"):
        load_model(tmp_path / "m.gguf")


def test_a_missing_tensor_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", leave_out="blk.0.ffn_up.weight")
    with pytest.raises(ConfigError, match=r"needs blk\.0\.ffn_up\.weight"):
        load_model(tmp_path / "m.gguf")


def test_a_tensor_without_a_use_is_an_error(tmp_path: Path) -> None:
    norm = np.ones(HEAD_DIM, np.float32)
    write(tmp_path / "m.gguf", extra={"blk.0.attn_sinks.weight": norm})
    with pytest.raises(ConfigError, match=r"1 tensors have no use .*attn_sinks"):
        load_model(tmp_path / "m.gguf")


def test_every_registered_page_can_be_imported() -> None:
    for name in supported():
        assert callable(architecture(name).page)
