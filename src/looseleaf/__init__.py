"""Looseleaf: a PagedAttention serving engine for ordinary machines.

`LLM`, `SamplingParams` and the errors are loaded when first used: importing the package loads
neither NumPy nor the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "looseleaf.engine.llm",
    "BeamSearchParams": "looseleaf.engine.beams",
    "BeamSearchOutput": "looseleaf.engine.llm",
    "CompletionOutput": "looseleaf.engine.llm",
    "RequestOutput": "looseleaf.engine.llm",
    "SamplingParams": "looseleaf.sampling.params",
    "StructuredOutputs": "looseleaf.sampling.params",
    "LooseleafError": "looseleaf.core.errors",
    "ConfigError": "looseleaf.core.errors",
    "CapacityError": "looseleaf.core.errors",
}

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CapacityError",
    "CompletionOutput",
    "ConfigError",
    "LooseleafError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

if TYPE_CHECKING:
    from looseleaf.core.errors import CapacityError, ConfigError, LooseleafError
    from looseleaf.engine.beams import BeamSearchParams
    from looseleaf.engine.llm import LLM, BeamSearchOutput, CompletionOutput, RequestOutput
    from looseleaf.sampling.params import SamplingParams, StructuredOutputs


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
