"""`looseleaf plan`"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.options import DEFAULTS, print_json
from looseleaf.commands.plan_arguments import add_arguments
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import EngineSettings, format_bytes, num_bytes_of
from looseleaf.planner.fit import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
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
    calibrated_timing,
    memory_plan,
    profile_timing,
    roofline_timing,
    run_plan,
)
from looseleaf.planner.recorded_trace import DRAWN_REQUESTS, read_workload
from looseleaf.planner.summary import as_json, as_text
from looseleaf.planner.trace import Trace

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace) -> None:
    hardware = load_hardware(options.hardware)
    settings = _settings(options, hardware)
    fitted = fit(load_shape(options.model), _fit_settings(options, hardware, settings))
    timing = _timing(options, fitted, hardware)
    read = read_workload(
        options.trace,
        seed=options.seed,
        output_share=options.output_share,
        num_drawn=options.limit or DRAWN_REQUESTS,
    )
    traffic = Traffic(
        rate=options.rate,
        speed=options.speed,
        limit=options.limit,
        seed=options.seed or 0,
        concurrency=options.concurrency,
    )
    trace = traffic.of(read)
    memory = memory_plan(fitted, options.num_blocks)
    start = time.perf_counter()
    with _bar(len(trace.requests)) as on_progress:
        plan = run_plan(
            trace,
            settings,
            memory,
            timing.times,
            swap_bandwidth=_swap_bandwidth(options, hardware),
            on_progress=on_progress,
        )
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
        swap_space=options.swap_space,
        preemption_mode=options.preemption_mode,
    )


def _swap_bandwidth(options: argparse.Namespace, hardware: Hardware) -> float | None:
    if options.swap_bandwidth is None:
        return hardware.swap_bandwidth
    return float(options.swap_bandwidth * 1e9)


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
    if options.calibration is not None:
        if given or options.kernel_profile is not None:
            raise ConfigError(
                "a calibration says all about times: leave out --calibration, or the other options"
            )
        return calibrated_timing(options.calibration)
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
            "users": trace.users,
            "seed": options.seed or 0 if options.rate is not None else options.seed,
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
        "swap": _swap(options, hardware, plan),
        "summary": as_json(plan.summary),
        "first_refused": [refused._asdict() for refused in plan.result.refused[:SHOWN]],
        "warnings": list(plan.warnings),
    }


def _swap(options: argparse.Namespace, hardware: Hardware, plan: Plan) -> dict[str, Any] | None:
    """What went to memory besides the KV cache, and came back."""
    tiers = plan.tiers
    if tiers is None:
        return None
    return {
        "space": num_bytes_of(options.swap_space),
        "bandwidth": _swap_bandwidth(options, hardware),
        "preemption_mode": plan.settings.preemption_mode,
        "blocks_saved": tiers.saved,
        "blocks_loaded": tiers.loaded_from_host,
        "bytes_at_end": tiers.host_bytes,
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
    if report["swap"] is not None:
        swap = report["swap"]
        lines.append(
            f"swap      {swap['blocks_saved']} blocks saved and {swap['blocks_loaded']} loaded, at "
            f"{swap['bandwidth'] / 1e9:.1f} GB/s; {format_bytes(swap['bytes_at_end'])} of "
            f"{format_bytes(swap['space'])} in use at the end"
        )
    if trace.bad_rows:
        lines += ["", f"{len(trace.bad_rows)} rows of the trace are not used:"]
        lines += [f"  line {row.line}: {row.reason}" for row in trace.bad_rows[:SHOWN]]
        if len(trace.bad_rows) > SHOWN:
            lines.append(f"  and {len(trace.bad_rows) - SHOWN} more")
    if plan.warnings:
        lines += ["", *(f"warning: {warning}" for warning in plan.warnings)]
    return "\n".join(lines)
