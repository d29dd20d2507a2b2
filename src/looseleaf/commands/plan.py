"""`looseleaf plan`"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.options import DEFAULTS, add_json, at_least, memory_size, print_json
from looseleaf.core.errors import ConfigError
from looseleaf.core.policy import POLICIES
from looseleaf.engine.settings import KV_ALLOCATORS, EngineSettings, format_bytes
from looseleaf.planner.fit import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_UTILIZATION,
    Fit,
    FitSettings,
    fit,
)
from looseleaf.planner.hardware import Hardware, load_hardware
from looseleaf.planner.models import load_shape
from looseleaf.planner.plan import (
    SHOWN,
    Plan,
    Timing,
    Traffic,
    memory_plan,
    profile_timing,
    roofline_timing,
    run_plan,
)
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.summary import as_json, as_text
from looseleaf.planner.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="requests to replay, as JSON lines or CSV: Mooncake, Azure, Bailian, logs of OpenAI "
        "responses, lengths alone (then with --rate), or what `looseleaf serve --record` wrote",
    )
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
    add_json(parser)
    _add_traffic(parser)
    _add_memory(parser)
    _add_scheduling(parser)
    _add_times(parser)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help="forget the times of the trace: so many requests a second, at random (Poisson)",
    )
    traffic.add_argument("--seed", type=int, default=0, help="for --rate")
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


def run(options: argparse.Namespace) -> None:
    hardware = load_hardware(options.hardware)
    settings = _settings(options, hardware)
    fitted = fit(load_shape(options.model), _fit_settings(options, hardware, settings))
    timing = _timing(options, fitted, hardware)
    read = read_workload(options.trace)
    traffic = Traffic(
        rate=options.rate, speed=options.speed, limit=options.limit, seed=options.seed
    )
    trace = traffic.of(read)
    memory = memory_plan(fitted, options.num_blocks)
    start = time.perf_counter()
    with _bar(len(trace.requests)) as on_progress:
        plan = run_plan(trace, settings, memory, timing.times, on_progress=on_progress)
    seconds = time.perf_counter() - start
    num_tokens = plan.summary.prompt_tokens + plan.summary.output_tokens
    print(
        f"replayed {num_tokens} tokens in {seconds:.1f} s, "
        f"{1e6 * seconds / max(1, num_tokens):.2f} us a token",
        file=sys.stderr,
    )
    report = _report(options, hardware, fitted, timing, trace, plan)
    if options.json:
        print_json(report)
    else:
        print(_text(report, trace, plan))


@contextmanager
def _bar(num_requests: int) -> Iterator[Callable[[int], None]]:
    """Drawn once for each percent: it is told of every request."""
    with progress("requests", 100) as advance:
        drawn = 0

        def on_progress(num_ended: int) -> None:
            nonlocal drawn
            while drawn < 100 * num_ended // max(1, num_requests) and drawn < 100:
                drawn += 1
                advance()

        yield on_progress


def _settings(options: argparse.Namespace, hardware: Hardware) -> EngineSettings:
    gpu = hardware.kind == "gpu"
    seqs = DEFAULT_MAX_NUM_SEQS if gpu else DEFAULTS.max_num_seqs
    tokens = DEFAULT_MAX_NUM_BATCHED_TOKENS if gpu else DEFAULTS.max_num_batched_tokens
    return EngineSettings(
        model=options.model,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs or seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or tokens,
        max_model_len=options.max_model_len,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        admission_headroom=options.admission_headroom,
        scheduling_policy=options.scheduling_policy,
        enable_prefix_caching=options.enable_prefix_caching,
        kv_allocator=options.kv_allocator,
    )


def _fit_settings(
    options: argparse.Namespace, hardware: Hardware, settings: EngineSettings
) -> FitSettings:
    memory = options.memory or hardware.usable_memory
    if memory is None:
        raise ConfigError(f"how much memory has {hardware.title}? Pass --memory, like 64GiB")
    return FitSettings(
        memory=memory,
        kind=hardware.kind,
        gpu_memory_utilization=options.gpu_memory_utilization,
        weights_dtype=options.weights_dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        tensor_parallel_size=options.tensor_parallel_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        kv_cache_memory=options.kv_cache_memory,
    )


def _timing(options: argparse.Namespace, fitted: Fit, hardware: Hardware) -> Timing:
    given = {
        name: getattr(options, name)
        for name in ("compute_efficiency", "bandwidth_efficiency", "step_overhead")
        if getattr(options, name) is not None
    }
    if options.kernel_profile is None:
        return roofline_timing(fitted, hardware, **given)
    overhead = given.pop("step_overhead", 0.0)
    if given:
        raise ConfigError(
            "measured kernels have no efficiencies: leave out --kernel-profile, or them"
        )
    return profile_timing(options.kernel_profile, fitted, step_overhead=overhead)


def _report(
    options: argparse.Namespace,
    hardware: Hardware,
    fitted: Fit,
    timing: Timing,
    trace: Trace,
    plan: Plan,
) -> dict[str, Any]:
    memory, settings = plan.memory, plan.settings
    return {
        "trace": {
            "file": options.trace.name,
            "requests": len(trace.requests),
            "bad_rows": len(trace.bad_rows),
            "first_bad_rows": [row._asdict() for row in trace.bad_rows[:SHOWN]],
            "rate": options.rate,
            "speed": options.speed,
            "seed": options.seed if options.rate is not None else None,
        },
        "model": fitted.shape.name,
        "weights_dtype": fitted.weights_dtype,
        "kv_cache_dtype": fitted.kv_dtype,
        "hardware": hardware.name,
        "tensor_parallel_size": options.tensor_parallel_size,
        "cost_model": {"name": timing.model.name, "known_error": timing.model.known_error},
        "kv_cache": {
            "num_blocks": memory.num_blocks,
            "block_size": memory.block_size,
            "bytes": memory.num_blocks * memory.block_bytes,
            "max_model_len": memory.max_model_len,
        },
        "settings": {
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "long_prefill_token_threshold": settings.long_prefill_token_threshold,
            "admission_headroom": settings.admission_headroom,
            "scheduling_policy": settings.scheduling_policy,
            "enable_prefix_caching": settings.enable_prefix_caching,
            "kv_allocator": settings.kv_allocator,
        },
        "summary": as_json(plan.summary),
        "first_refused": [refused._asdict() for refused in plan.result.refused[:SHOWN]],
        "warnings": list(plan.warnings),
    }


def _text(report: dict[str, Any], trace: Trace, plan: Plan) -> str:
    cache, cost = report["kv_cache"], report["cost_model"]
    lines = [
        f"{report['model']} ({report['weights_dtype']}, KV {report['kv_cache_dtype']}) on "
        f"{report['tensor_parallel_size']} x {report['hardware']}; KV cache "
        f"{format_bytes(cache['bytes'])}, {cache['num_blocks']} blocks of {cache['block_size']}",
        f"step times: {cost['name']}; error: {cost['known_error']}",
        "",
        as_text(plan.summary),
    ]
    if trace.bad_rows:
        lines += ["", f"{len(trace.bad_rows)} rows of the trace are not used:"]
        lines += [f"  line {row.line}: {row.reason}" for row in trace.bad_rows[:SHOWN]]
        if len(trace.bad_rows) > SHOWN:
            lines.append(f"  and {len(trace.bad_rows) - SHOWN} more")
    if plan.warnings:
        lines += ["", *(f"warning: {warning}" for warning in plan.warnings)]
    return "\n".join(lines)
