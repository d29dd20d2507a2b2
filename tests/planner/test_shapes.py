"""Shapes of models: from the built-in table, a config.json, a GGUF header."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_gguf

from looseleaf.core.errors import ConfigError, LooseleafError
from looseleaf.planner.hf_config import shape_from_config
from looseleaf.planner.known_models import KnownShape, find_known, known_shapes
from looseleaf.planner.models import load_shape
from looseleaf.planner.shapes import KVLayer, ModelShape

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def of(**settings: Any) -> ModelShape:
    config = {key: value for key, value in {**LLAMA, **settings}.items() if value is not ...}
    return shape_from_config(config, "test", "test")


@pytest.mark.parametrize("row", known_shapes(), ids=lambda row: row.name)
def test_the_parameters_that_follow_are_those_published(row: KnownShape) -> None:
    shape = row.shape()
    total = shape.parameters.total
    close = abs(total / row.parameters - 1) < 0.01
    assert close or round(total / row.rounded_to) * row.rounded_to == row.parameters
    if row.active_parameters is not None:
        assert shape.num_experts > shape.num_experts_per_token > 0
        # DeepSeek-V2-Lite's 2.4B leaves out the embedding, of 0.2B.
        assert shape.active_parameters == pytest.approx(row.active_parameters, rel=0.11)
    else:
        assert shape.active_parameters == total
    assert not shape.notes


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        # [P] Kwon et al. 2023, section 3: 800 KB for a token of OPT-13B.
        ("facebook/opt-13b", 819_200),
        ("facebook/opt-66b", 2_359_296),
        ("facebook/opt-175b", 4_718_592),
        ("llama-13b", 819_200),
        ("meta-llama/Meta-Llama-3-8B", 131_072),
        ("meta-llama/Llama-3.1-70B", 327_680),
        ("meta-llama/Llama-3.1-405B", 516_096),
        ("Qwen/Qwen2.5-7B", 57_344),
        # (512 + 64) numbers in each of 61 layers (arXiv 2412.19437): 70 KB, as its authors count.
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("deepseek-ai/DeepSeek-V2", 69_120),
    ],
)
def test_the_kv_of_a_token(name: str, kv_bytes: int) -> None:
    assert load_shape(name).kv_bytes_per_token("bf16") == kv_bytes


def test_published_numbers_of_heads_and_layers() -> None:
    llama, mixtral = load_shape("Llama-3.1-8B"), load_shape("Mixtral-8x7B-v0.1")
    assert (llama.num_layers, llama.num_heads, llama.num_kv_heads, llama.head_dim) == (
        32,
        32,
        8,
        128,
    )
    assert (llama.vocab_size, llama.ffn_size, llama.max_model_len) == (128_256, 14_336, 131_072)
    assert (mixtral.num_experts, mixtral.num_experts_per_token) == (8, 2)


def test_the_exact_count_of_a_mixture_of_experts_with_latent_attention() -> None:
    shape = load_shape("deepseek-ai/DeepSeek-V3")
    assert shape.parameters.total == 671_026_419_200
    assert shape.active_parameters == 37_552_282_624 + 14_848  # 58 routers' biases of 256
    assert shape.dtype == "fp8"
    assert shape.is_latent


@pytest.mark.parametrize(
    ("name", "full", "windowed", "window"),
    [
        ("google/gemma-2-9b", 21, 21, 4096),
        ("google/gemma-3-1b", 4, 22, 512),
        ("google/gemma-3-4b", 5, 29, 1024),
        ("google/gemma-3-12b", 8, 40, 1024),
        ("google/gemma-3-27b", 10, 52, 1024),
        ("mistralai/Mistral-7B-v0.1", 0, 32, 4096),
        ("mistralai/Mistral-7B-v0.3", 32, 0, None),
        ("microsoft/Phi-3.5-mini-instruct", 32, 0, None),  # its window is longer than its context
    ],
)
def test_layers_with_a_window(name: str, full: int, windowed: int, window: int | None) -> None:
    shape = load_shape(name)
    windows = [layer.window for layer in shape.kv_layers if layer.window is not None]
    assert len(windows) == windowed == shape.num_window_layers
    assert len(shape.kv_layers) == full + windowed == shape.num_layers
    assert set(windows) <= {window}


def test_gemma_2_begins_with_a_window_and_gemma_3_has_one_full_layer_in_six() -> None:
    gemma2, gemma3 = load_shape("gemma-2-2b-it"), load_shape("gemma-3-1b-it")
    assert [layer.window is None for layer in gemma2.kv_layers[:4]] == [False, True, False, True]
    assert [i for i, layer in enumerate(gemma3.kv_layers) if layer.window is None] == [
        5,
        11,
        17,
        23,
    ]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("LLAMA-3.1-8b-instruct", "meta-llama/Llama-3.1-8B"),
        ("someone/Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b"),
        ("Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-v0.2"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("google/gemma-3-27b-it", "google/gemma-3-27b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"),
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M"),
        ("llama-13b", "huggyllama/llama-13b"),
        ("Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-4k-instruct"),
        ("gpt-5", None),
    ],
)
def test_names_of_the_table(name: str, found: str | None) -> None:
    row = find_known(name)
    assert (row and row.name) == found


def test_no_name_of_the_table_stands_for_two_rows() -> None:
    names = [row.name.lower() for row in known_shapes()]
    assert len(set(names)) == len(names)
    for row in known_shapes():
        for name in (row.name, *row.aliases):
            assert find_known(name) == row


def test_each_row_names_its_source() -> None:
    assert all(len(row.source) > 10 for row in known_shapes())


def test_a_window_that_is_not_used() -> None:
    unused = of(
        model_type="qwen2", sliding_window=4096, use_sliding_window=False, max_window_layers=28
    )
    used = of(
        model_type="qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=28
    )
    assert unused.num_window_layers == 0
    assert [layer.window for layer in used.kv_layers] == [None] * 28 + [4096] * 4


def test_layer_types_decide_where_they_are_given() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    shape = of(model_type="whatever", sliding_window=128, layer_types=kinds)
    assert [layer.window for layer in shape.kv_layers] == [128, None] * 16
    assert "whatever" in shape.notes[0]
    with pytest.raises(ConfigError, match="linear_attention"):
        of(layer_types=["linear_attention"] * 32)
    with pytest.raises(ConfigError, match="names 1 layers of 32"):
        of(layer_types=["full_attention"])


def test_head_dim_need_not_be_hidden_size_over_heads() -> None:
    shape = of(model_type="qwen3", hidden_size=1024, num_attention_heads=16, head_dim=128)
    assert shape.kv_layers[0] == KVLayer(8, 128, 128)


def test_a_nested_text_config_with_what_it_leaves_unsaid() -> None:
    """As google/gemma-3-4b-it has it: heads and vocabulary are the family's own."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}
    shape = shape_from_config(config, "gemma", "test")
    table = load_shape("google/gemma-3-4b")
    assert shape.kv_layers == table.kv_layers
    assert shape.parameters == table.parameters
    assert "images" in shape.notes[0]


@pytest.mark.parametrize(
    ("quantized", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
    ],
)
def test_quantized_checkpoints(quantized: dict[str, Any], dtype: str) -> None:
    shape = of(quantization_config=quantized)
    assert shape.dtype == dtype
    assert not shape.notes


def test_what_is_not_known_is_said() -> None:
    assert of(quantization_config={"quant_method": "magic"}).notes
    assert of(torch_dtype="int3").notes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_hidden_layers": 2**40}, "up to 10000"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', but it must be a whole number"),
        ({"num_attention_heads": -1}, "num_attention_heads is -1"),
        ({"hidden_size": 4097}, "does not divide into 32 heads"),
        ({"model_type": "mamba"}, "keep a state"),
        ({"model_type": "qwen3_next"}, "keep a state"),
        ({"model_type": "t5"}, "no decoder"),
    ],
)
def test_settings_that_make_no_shape(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        of(**settings)


def test_a_folder_with_a_config_and_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_shape(str(tmp_path)).stored_bytes is None
    (tmp_path / "a.safetensors").write_bytes(bytes(1000))
    (tmp_path / "b.safetensors").write_bytes(bytes(24))
    assert load_shape(str(tmp_path)).stored_bytes == 1024
    index = {"metadata": {"total_size": 16_060_522_496}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shape = load_shape(str(tmp_path / "config.json"))
    assert shape.stored_bytes == 16_060_522_496
    assert shape.name == tmp_path.name
    assert shape.parameters.total * 2 == shape.stored_bytes


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", "[" * 100_000], ids=["empty", "list", "cut", "deep"]
)
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meta-llama/Llama-3.1-9B", "did you mean meta-llama/Llama-3.1-8B"),
        ("nothing/like-it", "looseleaf fit --list"),
        ("no/such/file.gguf", "there is no file"),
    ],
)
def test_models_that_are_not_there(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_shape(name)


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json and 0 \.gguf files"):
        load_shape(str(tmp_path))


def test_the_header_of_a_gguf_file(tiny_model: Path) -> None:
    shape = load_shape(str(tiny_model))
    with gguf_reader(tiny_model) as tensors:
        assert shape.parameters.total == sum(int(np.prod(t.shape)) for t in tensors)
        assert shape.stored_bytes == sum(int(t.n_bytes) for t in tensors)
    layer = KVLayer(tiny_gguf.KV_HEADS, tiny_gguf.HEAD_DIM, tiny_gguf.HEAD_DIM)
    assert shape.kv_layers == (layer,) * tiny_gguf.LAYERS
    assert (shape.hidden_size, shape.num_heads) == (tiny_gguf.HIDDEN, tiny_gguf.HEADS)
    assert (shape.max_model_len, shape.dtype) == (tiny_gguf.CONTEXT, "f32")


class gguf_reader:
    """The file's tensors, as its writers' own package reads them."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)

    def __enter__(self) -> Any:
        return self.reader.tensors

    def __exit__(self, *_: object) -> None:
        self.reader.data._mmap.close()


def write_header(
    path: Path, architecture: str, tensors: dict[str, tuple[int, ...]], **more: Any
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(4)
    writer.add_context_length(8192)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    for key, value in more.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_with_latent_attention_and_experts(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf",
        "deepseek2",
        {
            "token_embd.weight": (100, 64),
            "output.weight": (100, 64),
            "blk.0.attn_kv_a_mqa.weight": (40, 64),
            "blk.0.ffn_gate_exps.weight": (8, 32, 64),
            "blk.0.ffn_gate_inp.weight": (8, 64),
            "blk.0.attn_norm.weight": (64,),
        },
        attention__head_count_kv=1,
        attention__kv_lora_rank=32,
        attention__key_length=40,
        attention__value_length=32,
        rope__dimension_count=8,
        expert_count=8,
        expert_used_count=2,
    )
    shape = load_shape(str(path))
    assert shape.kv_layers == (KVLayer(1, 40, 0),) * 4
    assert shape.parameters.experts == 8 * 32 * 64
    assert shape.active_parameters == shape.parameters.total - 6 * 32 * 64
    assert (shape.parameters.replicated, shape.parameters.router) == (40 * 64, 8 * 64)
    assert shape.vocab_size == 100


def test_a_gguf_with_windows_and_heads_by_layer(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf",
        "other",
        {"token_embd.weight": (100, 64)},
        attention__head_count_kv=[2, 1, 0, 2],
        attention__sliding_window=512,
        attention__sliding_window_pattern=[True, False, True, True],
    )
    shape = load_shape(str(path))
    assert shape.kv_layers == (KVLayer(2, 16, 16, 512), KVLayer(1, 16, 16), KVLayer(2, 16, 16, 512))
    assert "1 layers store no keys and values" in shape.notes[0]
    assert shape.tied_embeddings


def test_a_gguf_of_gemma_2_without_its_pattern(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf",
        "gemma2",
        {"token_embd.weight": (100, 64)},
        attention__sliding_window=512,
    )
    windows = [layer.window for layer in load_shape(str(path)).kv_layers]
    assert windows == [512, None, 512, None]


@pytest.mark.parametrize("heads", [[1, 2], [1.5, 1.0, 1.0, 1.0]])
def test_a_gguf_whose_heads_make_no_sense(tmp_path: Path, heads: list[Any]) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", {}, attention__head_count_kv=heads)
    with pytest.raises(LooseleafError, match="head_count_kv"):
        load_shape(str(path))
