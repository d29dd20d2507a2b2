"""The options of `looseleaf plan`"""

import argparse
from pathlib import Path

from looseleaf.commands.device_options import (
    add_device_memory,
    add_dtypes,
    add_hardware,
    add_tensor_parallel_size,
)
from looseleaf.commands.options import (
    DEFAULTS,
    add_block_size,
    add_block_use,
    add_json,
    add_max_model_len,
    add_order,
    add_preemption_mode,
    at_least,
    swap_size,
)
from looseleaf.commands.plan_outputs import add_outputs
from looseleaf.commands.plan_search_arguments import add_replicas, add_searches
from looseleaf.commands.plan_tiers import add_disk
from looseleaf.commands.studio_recording import add_recording
from looseleaf.planner.fit import DEFAULT_MAX_NUM_BATCHED_TOKENS, DEFAULT_MAX_NUM_SEQS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="requests to replay, as JSON lines or CSV: Mooncake, Azure, Bailian, logs of OpenAI "
        "responses, lengths alone (then with --rate), or what `looseleaf serve --record` wrote; or "
        "a .yaml file that says what to draw at random, or a .json with a CDF of lengths",
    )
    add_settings(parser)
    add_json(parser)
    add_searches(parser)
    add_outputs(parser)
    add_recording(parser.add_argument_group("studio"))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """What changes the answer: a sweep may go through any of it."""
    parser.add_argument(
        "--model",
        "-m",
        required=True,
        help="a name that `looseleaf fit --list` shows, a .gguf file, a config.json or its folder",
    )
    add_hardware(parser, required=True)
    _add_traffic(parser)
    _add_memory(parser)
    _add_scheduling(parser)
    _add_times(parser)
    add_replicas(parser)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help="forget the times of the trace: so many requests a second, at random (Poisson)",
    )
    traffic.add_argument(
        "--concurrency",
        type=at_least(1),
        metavar="N",
        help="forget its times: N clients at a time, and the next request or session comes when "
        "one of them has all its answers",
    )
    traffic.add_argument(
        "--seed",
        type=at_least(0),
        help="for what is drawn at random (default: that of the .yaml file, or 0)",
    )
    traffic.add_argument(
        "--output-share",
        type=float,
        metavar="SHARE",
        help="how much of the lengths of a .json with a CDF is the answer",
    )
    traffic.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="play the trace X times as fast"
    )
    traffic.add_argument(
        "--limit", type=at_least(1), metavar="N", help="play only the first N requests"
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    memory = parser.add_argument_group("memory")
    add_device_memory(memory)
    memory.add_argument(
        "--num-blocks", type=at_least(1), metavar="N", help="blocks of the KV cache, instead"
    )
    add_tensor_parallel_size(memory, note="; what they tell each other takes no time here")
    add_dtypes(memory)
    add_block_size(memory, at_least)
    add_max_model_len(memory, at_least)
    add_block_use(memory)
    memory.add_argument(
        "--swap-space",
        type=swap_size,
        metavar="SIZE",
        help="host memory, for each device, for blocks that no longer fit into the KV cache, like "
        "16GiB; a number alone is GiB (default: none)",
    )
    memory.add_argument(
        "--swap-bandwidth",
        type=float,
        metavar="GB/S",
        help="at which blocks go there and come back (default: 0.8 of the hardware's PCI Express, "
        "or 0.4 of a processor's memory bandwidth)",
    )
    add_preemption_mode(memory)
    add_disk(memory)


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    scheduling = parser.add_argument_group("scheduling")
    scheduling.add_argument(
        "--max-num-seqs",
        type=at_least(1),
        metavar="N",
        help=f"most sequences in a step (default: {DEFAULT_MAX_NUM_SEQS} on a GPU, "
        f"{DEFAULTS.max_num_seqs} on a processor)",
    )
    scheduling.add_argument(
        "--max-num-batched-tokens",
        type=at_least(1),
        metavar="TOKENS",
        help=f"most tokens in a step (default: {DEFAULT_MAX_NUM_BATCHED_TOKENS} on a GPU, "
        f"{DEFAULTS.max_num_batched_tokens} on a processor)",
    )
    add_order(scheduling, at_least)


def _add_times(parser: argparse.ArgumentParser) -> None:
    times = parser.add_argument_group("how long steps take")
    times.add_argument(
        "--kernel-profile",
        type=Path,
        metavar="PREFIX",
        help="measured kernels instead of a roofline: what the names of _dense.csv, "
        "_per_sequence.csv and _attention.csv begin with",
    )
    times.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="times of the machine and model that `looseleaf calibrate` has measured",
    )
    times.add_argument(
        "--compute-efficiency",
        type=float,
        metavar="SHARE",
        help="of the hardware's peak that products reach (roofline; default: 0.7)",
    )
    times.add_argument(
        "--bandwidth-efficiency",
        type=float,
        metavar="SHARE",
        help="of its bandwidth that reads reach (roofline; default: 0.85)",
    )
    times.add_argument(
        "--step-overhead",
        type=float,
        metavar="SECONDS",
        help="what each step takes besides (default: 0)",
    )
