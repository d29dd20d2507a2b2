"""A model's weights as the native executor takes them, packed once and kept for later starts."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from looseleaf.executors.native import native_module
from looseleaf.executors.packed_cache import PackedCache
from looseleaf.executors.packed_weights import PACKED_TYPES, PackedWeight, pack, packed_form
from looseleaf.models.config import ModelConfig
from looseleaf.models.load import RAW_WEIGHTS_VERSION, kept_type, raw_weights
from looseleaf.program.program import Program
from looseleaf.weights.gguf import GGUFFile

FOLDER = "packed"


def native_weights(
    file: GGUFFile,
    config: ModelConfig,
    program: Program,
    *,
    num_threads: int,
    cache_dir: Path | None = None,
) -> dict[str, PackedWeight]:
    """The program's weights, packed; below `cache_dir`, if there is one, they are kept and found.

    Raises ConfigError where the package has no compiled part.
    """
    native = native_module()

    def packed() -> Iterator[tuple[str, PackedWeight]]:
        for name, weight in raw_weights(file, config, program, PACKED_TYPES):
            yield name, pack(native, weight, num_threads)

    identity = None if cache_dir is None else file.identity()
    if cache_dir is None or identity is None:
        return dict(packed())
    forms = {
        name: packed_form(native, kept_type(file.tensors[name], PACKED_TYPES), shape)
        for name, shape in program.weights
    }
    # All that the bytes depend on, besides the forms, which the file repeats.
    depends = f"{identity} {RAW_WEIGHTS_VERSION} {native.LAYOUT_VERSION}"
    return PackedCache(cache_dir / FOLDER).load(
        hashlib.sha256(depends.encode()).hexdigest(),
        file.path,
        forms,
        packed,
        lambda: file.identity() == identity,
    )
