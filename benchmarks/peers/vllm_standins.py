"""Lets vLLM's pure-Python scheduling code be imported without torch.

That code imports far more than it uses. Where torch is missing, packages that are only imported,
never called in what is timed, are replaced by inert stand-ins: third-party ones, and the parts of
vLLM that configure, load models or talk to other processes. Every module that does the timed work
is the file from vLLM's own wheel, which `check` makes sure of.
"""

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

THIRD_PARTY = (
    "torch transformers tokenizers huggingface_hub PIL regex cloudpickle uvloop psutil zmq "
    "cachetools openai openai_harmony mistral_common cv2 xgrammar llguidance aiohttp fastapi "
    "prometheus_client partial_json_parser pybase64 cpuinfo requests urllib3 triton safetensors "
    "tqdm yaml einops blake3 jinja2 packaging cbor2 lark outlines_core lmformatenforcer diskcache "
    "setproctitle"
).split()

OUTSIDE = (
    "vllm.config vllm.platforms vllm.compilation vllm.model_executor vllm.transformers_utils "
    "vllm.tokenizers vllm.parser vllm.renderers vllm.entrypoints vllm.tool_parsers vllm.reasoning "
    "vllm.lora vllm.multimodal vllm.inputs vllm.forward_context vllm.distributed.kv_transfer "
    "vllm.distributed.ec_transfer vllm.distributed.aux_output_connector "
    "vllm.distributed.parallel_state vllm.utils.torch_utils vllm.utils.network_utils "
    "vllm.utils.mistral vllm.usage vllm.v1.attention vllm.v1.hisparse.runtime vllm.v1.kv_offload "
    "vllm.v1.simple_kv_offload vllm.v1.metrics.perf vllm.v1.structured_output.backend_types "
    "vllm.v1.structured_output.backend_guidance vllm.v1.structured_output.backend_xgrammar "
    "vllm.v1.structured_output.utils vllm.v1.spec_decode.dynamic"
).split()

BARE = ("vllm", "vllm.distributed", "vllm.utils")
"""Packages whose files are used but whose `__init__`, which imports torch, is not run."""


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = _Meta(name, (_Anything,), {})
        setattr(cls, name, attribute)
        return attribute


class _Anything(metaclass=_Meta):
    """Stands for any class, function or decorator."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # used as a plain decorator
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Meta(name, (_Anything,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else _Anything()


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = _Meta(name, (_Anything,), {})
        setattr(self, name, attribute)
        return attribute


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, third_party: set[str]) -> None:
        self._third_party = third_party

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        outside = any(name == away or name.startswith(away + ".") for away in OUTSIDE)
        if outside or name.split(".")[0] in self._third_party:
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        return None


def install() -> bool:
    """Put the stand-ins in place; False, and nothing is changed, where torch is installed."""
    missing = {name for name in THIRD_PARTY if importlib.util.find_spec(name) is None}
    if "torch" not in missing:
        return False
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("vLLM is not installed in this environment")
    root = spec.submodule_search_locations[0]
    for name in BARE:
        module: Any = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        if name == "vllm.utils":  # two one-line helpers of its __init__ that are used
            module.length_from_prompt_token_ids_or_embeds = lambda ids, embeddings: len(ids)
            module.random_uuid = lambda: "0"
        sys.modules[name] = module
        if "." in name:
            setattr(sys.modules["vllm"], name.split(".")[1], module)
    config = _Loader().create_module(importlib.machinery.ModuleSpec("vllm.config", None))
    sys.modules["vllm.config"] = sys.modules["vllm"].config = config  # type: ignore[attr-defined]
    if "pybase64" in missing:  # the standard library's has the same interface
        missing.discard("pybase64")
        sys.modules["pybase64"] = base64
    sys.meta_path.insert(0, _Finder(missing))
    return True


def check(names: Iterable[str]) -> None:
    """Fail if a module that is timed is a stand-in."""
    for name in names:
        module = sys.modules[name]
        if isinstance(module, _StandIn) or not module.__file__:
            raise SystemExit(f"{name} is a stand-in, so its times would mean nothing")
