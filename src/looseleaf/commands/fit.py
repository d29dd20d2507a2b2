"""`looseleaf fit`"""

import argparse

from looseleaf.commands.device_options import (
    DEFAULTS,
    add_device_memory,
    add_dtypes,
    add_hardware,
    add_tensor_parallel_size,
)
from looseleaf.commands.options import (
    add_block_size,
    add_json,
    add_max_model_len,
    at_least,
    memory_size,
    print_json,
    read_by,
)
from looseleaf.core.errors import ConfigError
from looseleaf.planner.fit import FitSettings, fit
from looseleaf.planner.fit_report import as_json, as_text
from looseleaf.planner.hardware import known_hardware, load_hardware
from looseleaf.planner.known_models import known_shapes
from looseleaf.planner.lengths import parse_lengths
from looseleaf.planner.models import load_shape
from looseleaf.planner.shapes import ModelShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        help="a name of the built-in table (--list), a .gguf file, a config.json or its folder",
    )
    add_json(parser)
    parser.add_argument("--list", action="store_true", help="show the models and hardware known")
    memory = parser.add_argument_group("memory")
    add_hardware(memory)
    add_device_memory(memory)
    add_tensor_parallel_size(memory)
    memory.add_argument(
        "--overhead",
        type=memory_size,
        metavar="SIZE",
        help="activations and runtime on each device (default: by a rule, which is shown)",
    )
    formats = parser.add_argument_group("formats")
    add_dtypes(formats)
    add_block_size(formats, at_least)
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--requests",
        type=read_by(parse_lengths),
        nargs="+",
        default=[],
        metavar="PROMPT:OUTPUT",
        help="lengths in tokens, like 1000:200; several are a mix, 1000:200x0.3 with a share",
    )
    traffic.add_argument(
        "--shared-prefix",
        type=at_least(0),
        metavar="TOKENS",
        default=DEFAULTS.shared_prefix,
        help="tokens that all prompts begin with",
    )
    add_max_model_len(traffic, at_least)
    traffic.add_argument(
        "--max-num-seqs",
        type=at_least(1),
        help="most sequences in a step (default: 256 for the logits, and no advice about it)",
    )
    traffic.add_argument(
        "--max-num-batched-tokens",
        type=at_least(1),
        default=DEFAULTS.max_num_batched_tokens,
        help="most tokens in a step",
    )


def run(options: argparse.Namespace) -> None:
    if options.list:
        _list(options.json)
        return
    if options.model is None:
        raise ConfigError("which model? Pass one, or --list to see those that are known")
    shape = load_shape(options.model)
    answer = fit(shape, _settings(shape, options))
    if options.json:
        print_json(as_json(answer))
    else:
        print(as_text(answer))


def _settings(shape: ModelShape, options: argparse.Namespace) -> FitSettings:
    hardware = None if options.hardware is None else load_hardware(options.hardware)
    memory = options.memory
    if memory is None and hardware is not None:
        memory = hardware.usable_memory
    if memory is None:
        raise ConfigError(
            "how much memory? Pass --memory, like 24GiB, or --hardware with a device that has some "
            "of its own"
        )
    served_here = "cpu" if shape.kv_dtype == "int16" else "gpu"
    return FitSettings(
        memory=memory,
        kind=served_here if hardware is None else hardware.kind,
        gpu_memory_utilization=options.gpu_memory_utilization,
        weights_dtype=options.weights_dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        tensor_parallel_size=options.tensor_parallel_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_cache_memory=options.kv_cache_memory,
        overhead=options.overhead,
        requests=tuple(options.requests),
        shared_prefix=options.shared_prefix,
    )


def _list(json: bool) -> None:
    models = [row.name for row in known_shapes()]
    hardware = {row.name: row.title for row in known_hardware().values()}
    if json:
        print_json({"models": models, "hardware": list(hardware)})
        return
    print("models", *(f"  {name}" for name in models), sep="\n")
    print("hardware", *(f"  {name:14}  {title}" for name, title in hardware.items()), sep="\n")
