"""What a model asks of the kernels: the shapes of its matrix products and of its attention."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.executors.packed_weights import MATRIX_TYPES, PACKED_TYPES
from looseleaf.models.load import load_program
from looseleaf.program.op import Linear, Logits
from looseleaf.weights.gguf import GGUFFile


class Product(NamedTuple):
    """A product with a matrix of `n` outputs and `k` inputs, packed as the native executor does.

    `of_logits` is whether it makes the logits, for those rows alone that they are wanted of: one of
    a prompt.
    """

    n: int
    k: int
    packed_type: str
    of_logits: bool = False


class ModelShapes(NamedTuple):
    """`products` are those of one forward pass, and how often each comes."""

    products: Mapping[Product, int]
    num_heads: int
    num_kv_heads: int
    head_dim: int


def model_shapes(path: Path) -> ModelShapes:
    """Reads no weights. Raises LooseleafError for a file that is damaged or not supported."""
    with GGUFFile(path) as file:
        _, program = load_program(file)
        types = {name: info.ggml_type for name, info in file.tensors.items()}
    shapes = dict(program.weights)
    (logits,) = (op.source for op in program.ops if isinstance(op, Logits))
    counts: Counter[Product] = Counter()
    for op in program.ops:
        if isinstance(op, Linear):
            n, k = shapes[op.weight]
            packed_type = PACKED_TYPES.get(types[op.weight], "f32")
            counts[Product(n, k, packed_type, op.target == logits)] += 1
    return ModelShapes(counts, program.num_heads, program.num_kv_heads, program.head_dim)


def check_packed_type(packed_type: str) -> None:
    """Raises ConfigError, with those there are, for a type that weights are not packed in."""
    if packed_type not in MATRIX_TYPES:
        raise ConfigError(
            f"{packed_type!r} is no type of packed weights; choose one of {', '.join(MATRIX_TYPES)}"
        )


def parse_shapes(text: str, packed_type: str) -> list[Product]:
    """Products from "576x576,1536x576": outputs by inputs. Raises ConfigError."""
    return [_parse_shape(word.strip(), packed_type) for word in text.split(",")]


def _parse_shape(word: str, packed_type: str) -> Product:
    match = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})", word)
    if match is None:
        raise ConfigError(
            f"shape {word!r} is not understood: write outputs x inputs, like 1536x576"
        )
    n, k = int(match[1]), int(match[2])
    if packed_type != "f32" and k % 32:
        raise ConfigError(
            f"shape {word} has {k} inputs, but weights of type {packed_type} come in groups of "
            f"32: take a multiple of 32, or f32"
        )
    return Product(n, k, packed_type)
