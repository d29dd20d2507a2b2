"""From a GGUF file to what an executor needs: settings, program, weights."""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.errors import ConfigError
from looseleaf.models.config import ModelConfig
from looseleaf.models.registry import architecture
from looseleaf.program.program import Program, RawWeight
from looseleaf.program.trace import trace
from looseleaf.weights.gguf import GGUFFile, TensorInfo

_ROPE_FACTORS = "rope_freqs.weight"
_NO_WEIGHTS = (_ROPE_FACTORS, ".attn_rot_embd.weight")
"""Endings of the tensors that carry settings, not weights."""


RAW_WEIGHTS_VERSION = 1
"""What is made of raw weights is kept on disk: to be raised whenever `raw_weights` gives other rows
or numbers for the same file than before."""


class LoadedModel(NamedTuple):
    config: ModelConfig
    program: Program
    weights: dict[str, NDArray[np.float32]]


def load_model(source: str | os.PathLike[str] | GGUFFile) -> LoadedModel:
    """Read a whole model: settings, program, and all weights as float32 (4 bytes a parameter).

    Raises `GGUFError` for a damaged file and `ConfigError` for a model that is not supported.
    """
    if not isinstance(source, GGUFFile):
        with GGUFFile(source) as file:
            return load_model(file)
    config, program = load_program(source)
    return LoadedModel(config, program, load_weights(source, config, program))


def load_program(file: GGUFFile) -> tuple[ModelConfig, Program]:
    """Settings and program only: reads no weights, takes milliseconds.

    A tensor that the program would leave unused is an error: the model is a variant whose results
    would be wrong without it.
    """
    family = architecture(file.architecture)
    factors = file.tensor(_ROPE_FACTORS) if _ROPE_FACTORS in file.tensors else None
    config = ModelConfig.from_gguf(
        file.metadata, rope_factors=None if factors is None else factors.tolist()
    )
    shapes = {name: tuple(info.shape) for name, info in file.tensors.items()}
    program = trace(family.page, config, shapes)
    num_rows, num_tokens = program.vocab_size, len(file.metadata.get("tokenizer.ggml.tokens", ()))
    if num_rows < num_tokens:
        raise ConfigError(
            f"{config.name}: the tokenizer has {num_tokens} tokens, but the model only "
            f"{num_rows}: the file is damaged or was converted wrongly"
        )
    used = {name for name, _ in program.weights}
    unused = [name for name in shapes if name not in used and not name.endswith(_NO_WEIGHTS)]
    if unused:
        raise ConfigError(
            f"{config.name}: {len(unused)} tensors have no use in architecture "
            f"{file.architecture!r}, the first is {unused[0]!r}: this variant is not supported"
        )
    return config, program


def load_weights(
    file: GGUFFile, config: ModelConfig, program: Program
) -> dict[str, NDArray[np.float32]]:
    """The program's weights, decoded to float32 and in the row order that the page expects."""
    # Only now: whoever computes on packed weights never decodes all of them.
    from concurrent.futures import ThreadPoolExecutor

    family = architecture(file.architecture)

    def read(name: str) -> NDArray[np.float32]:
        weight: NDArray[Any] = family.from_gguf(name, file.tensor(name), config)
        return weight

    names = [name for name, _ in program.weights]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(read, names), strict=True))


def raw_weights(
    file: GGUFFile, config: ModelConfig, program: Program, kept: Collection[str]
) -> Iterator[tuple[str, RawWeight]]:
    """The program's weights by name, as they are in the file where their type is one of `kept`;
    decoded to float32 otherwise. Rows are in the order that the page expects."""
    family = architecture(file.architecture)
    for name, _ in program.weights:
        info = file.tensors[name]
        source = kept_type(info, kept)
        rows = file.tensor(name) if source == "F32" else file.raw(name)
        yield name, RawWeight(source, info.shape, family.from_gguf(name, rows, config))


def kept_type(info: TensorInfo, kept: Collection[str]) -> str:
    """The type in which `raw_weights` gives a tensor."""
    return info.ggml_type if info.ggml_type in kept and len(info.shape) == 2 else "F32"


def weight_bytes(weights: Mapping[str, NDArray[Any]]) -> int:
    """Memory that the weights take."""
    return sum(weight.nbytes for weight in weights.values())
