"""Which page a model's architecture has. Pages are imported when a model first asks for one."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.errors import ConfigError
from looseleaf.models.config import ModelConfig
from looseleaf.program.trace import Recorder

_MODULES = {"llama": "looseleaf.models.llama"}


class Architecture(NamedTuple):
    """A model family: its page, and how a weight read from GGUF becomes what the page expects."""

    page: Callable[[Recorder, ModelConfig], None]
    from_gguf: Callable[[str, NDArray[Any], ModelConfig], NDArray[np.generic]]


def supported() -> tuple[str, ...]:
    """GGUF's names of the architectures there are pages for."""
    return tuple(sorted(_MODULES))


def architecture(name: str) -> Architecture:
    """Raises `ConfigError` for an architecture without a page."""
    module_name = _MODULES.get(name)
    if module_name is None:
        raise ConfigError(
            f"model architecture {name!r} is not supported; use a model of one of these: "
            f"{', '.join(supported())}"
        )
    module = import_module(module_name)
    return Architecture(module.page, module.from_gguf)
