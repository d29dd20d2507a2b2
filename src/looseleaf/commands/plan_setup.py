"""What the options of `looseleaf plan` describe: a model on some hardware, and its traffic."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from looseleaf.commands.options import DEFAULTS
from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
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
from looseleaf.planner.replay import Replay
from looseleaf.planner.replicas import run_replicas
from looseleaf.planner.trace import Trace
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed


class Deployment(NamedTuple):
    hardware: Hardware
    settings: EngineSettings
    fitted: Fit
    memory: MemoryPlan
    timing: Timing
    swap_bandwidth: float | None
    """In bytes a second, between the KV cache and the host's memory."""
    disk_speed: DiskSpeed


def deployment(options: argparse.Namespace) -> Deployment:
    """Raises what sizing and reading files does."""
    hardware = load_hardware(options.hardware)
    settings = _settings(options, hardware)
    fitted = fit(load_shape(options.model), _fit_settings(options, hardware, settings))
    memory = memory_plan(fitted, options.num_blocks)
    timing = _timing(options, fitted, hardware)
    bandwidth = _swap_bandwidth(options, hardware)
    speed = options.disk_bandwidth or ASSUMED
    return Deployment(hardware, settings, fitted, memory, timing, bandwidth, speed)


def workload(options: argparse.Namespace) -> Trace:
    """The requests to be played, at their times."""
    traffic = Traffic(
        rate=options.rate,
        speed=options.speed,
        limit=options.limit,
        seed=options.seed or 0,
        concurrency=options.concurrency,
    )
    return traffic.of(
        read_workload(
            options.trace,
            seed=options.seed,
            output_share=options.output_share,
            num_drawn=options.limit or DRAWN_REQUESTS,
        )
    )


def played(
    options: argparse.Namespace,
    deployed: Deployment,
    trace: Trace,
    on_progress: Callable[[int], None] | None = None,
    on_replay: Callable[[Replay], None] | None = None,
) -> Plan:
    """The trace on one engine, which `on_replay` may watch, or on several."""
    settings, memory, timing = deployed.settings, deployed.memory, deployed.timing
    if options.replicas == 1:
        return run_plan(
            trace,
            settings,
            memory,
            timing.times,
            swap_bandwidth=deployed.swap_bandwidth,
            disk_speed=deployed.disk_speed,
            on_progress=on_progress,
            on_replay=on_replay,
        )
    return run_replicas(
        trace,
        settings,
        memory,
        timing.times,
        num_replicas=options.replicas,
        routing=options.routing,
        swap_bandwidth=deployed.swap_bandwidth,
        disk_speed=deployed.disk_speed,
        on_progress=on_progress,
    )


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
        kv_disk=options.kv_disk,
        kv_disk_size=options.kv_disk_size,
        preemption_mode=options.preemption_mode,
    )


def _swap_bandwidth(options: argparse.Namespace, hardware: Hardware) -> float | None:
    if options.swap_bandwidth is None:
        return hardware.swap_bandwidth
    return float(options.swap_bandwidth * 1e9)


def _fit_settings(
    options: argparse.Namespace, hardware: Hardware, settings: EngineSettings
) -> FitSettings:
    memory = hardware.usable_memory if options.memory is None else options.memory
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
