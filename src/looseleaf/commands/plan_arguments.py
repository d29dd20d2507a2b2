"""The options of `looseleaf plan`"""

import argparse
from pathlib import Path

from looseleaf.commands.options import DEFAULTS, add_json, at_least, memory_size, swap_size
from looseleaf.commands.plan_outputs import add_outputs
from looseleaf.commands.plan_search_arguments import add_replicas, add_searches
from looseleaf.commands.plan_tiers import add_disk
from looseleaf.commands.studio_recording import add_recording
from looseleaf.core.policy import POLICIES
from looseleaf.engine.settings import KV_ALLOCATORS, PREEMPTION_MODES
from looseleaf.planner.fit import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_UTILIZATION,
)


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
    parser.add_argument(
        "--hardware",
        required=True,
        metavar="NAME|FILE.yaml",
        help="a device that `looseleaf fit --list` shows, or your own",
    )
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
    memory.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="of each device, like 24GiB (default: the hardware's)",
    )
    memory.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        default=DEFAULT_UTILIZATION,
        help="share of the memory that the engine may take, on a processor too",
    )
    memory.add_argument(
        "--kv-cache-memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for the KV cache on each device (default: what weights and overhead leave)",
    )
    memory.add_argument(
        "--num-blocks", type=at_least(1), metavar="N", help="blocks of the KV cache, instead"
    )
    memory.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=at_least(1),
        metavar="N",
        default=1,
        help="devices that share the model; what they tell each other takes no time here",
    )
    memory.add_argument(
        "--weights-dtype", metavar="DTYPE", default="auto", help="auto is what it is published in"
    )
    memory.add_argument(
        "--kv-cache-dtype", metavar="DTYPE", default="auto", help="as for `looseleaf fit`"
    )
    memory.add_argument(
        "--block-size",
        type=at_least(1),
        default=DEFAULTS.block_size,
        help="tokens in a KV block",
    )
    memory.add_argument(
        "--max-model-len",
        type=at_least(2),
        metavar="TOKENS",
        help="most tokens of prompt and output together (default: the model's context, or what "
        "fits)",
    )
    memory.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.enable_prefix_caching,
        help="keep and share the KV of equal beginnings",
    )
    memory.add_argument(
        "--kv-allocator",
        choices=KV_ALLOCATORS,
        default=DEFAULTS.kv_allocator,
        help="paged blocks, or one of the old ways to reserve, for comparison",
    )
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
    memory.add_argument(
        "--preemption-mode",
        choices=PREEMPTION_MODES,
        default=DEFAULTS.preemption_mode,
        help="what becomes of a request that gave way: loaded from the swap space or computed "
        "again, or whatever takes less time (auto)",
    )
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
    scheduling.add_argument(
        "--long-prefill-token-threshold",
        type=at_least(1),
        metavar="TOKENS",
        help="most tokens of a step that long prompts get while others could use them (default: "
        "half of --max-num-batched-tokens)",
    )
    scheduling.add_argument(
        "--admission-headroom",
        type=at_least(0),
        default=DEFAULTS.admission_headroom,
        metavar="TOKENS",
        help="admit a request only if each running one could grow by so much",
    )
    scheduling.add_argument(
        "--scheduling-policy",
        choices=tuple(POLICIES),
        default=DEFAULTS.scheduling_policy,
        help="who goes first",
    )


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
