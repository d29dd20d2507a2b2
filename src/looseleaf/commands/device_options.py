"""Options of `fit` and `plan`: a device, and how a model is kept on it."""

import argparse

from looseleaf.commands.options import at_least, memory_size
from looseleaf.planner.dtypes import KV_DTYPES, WEIGHT_DTYPES
from looseleaf.planner.fit import FitSettings

DEFAULTS = FitSettings(memory=1)


def add_hardware(group: argparse._ActionsContainer, *, required: bool = False) -> None:
    group.add_argument(
        "--hardware",
        required=required,
        metavar="NAME|FILE.yaml",
        help="a device that `looseleaf fit --list` shows, or your own",
    )


def add_device_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="of each device, like 24GiB (default: the hardware's)",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        default=DEFAULTS.gpu_memory_utilization,
        help="share of the memory that the engine may take, on a processor too",
    )
    group.add_argument(
        "--kv-cache-memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for the KV cache on each device (default: what weights and overhead leave)",
    )


def add_tensor_parallel_size(
    group: argparse._ActionsContainer,
    *,
    default: int = DEFAULTS.tensor_parallel_size,
    note: str = "",
) -> None:
    group.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=at_least(1),
        metavar="N",
        default=default,
        help=f"devices that share the model{note}",
    )


def add_dtypes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--weights-dtype",
        metavar="DTYPE",
        default=DEFAULTS.weights_dtype,
        help=f"auto is what the model is published in, or one of {', '.join(WEIGHT_DTYPES)}",
    )
    group.add_argument(
        "--kv-cache-dtype",
        metavar="DTYPE",
        default=DEFAULTS.kv_cache_dtype,
        help="auto is bf16, or what `looseleaf serve` stores for a .gguf file; or one of "
        f"{', '.join(KV_DTYPES)}",
    )
