"""`looseleaf plan`"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from looseleaf.commands import plan_search, plan_sweep
from looseleaf.commands.options import print_json
from looseleaf.commands.plan_arguments import add_arguments
from looseleaf.commands.plan_outputs import Outputs, outputs_text, percents
from looseleaf.commands.plan_recording import PlanRecorder
from looseleaf.commands.plan_setup import Deployment, deployment, played, workload
from looseleaf.commands.plan_tiers import disk_report, swap_report, tiers_text
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import format_bytes
from looseleaf.planner.amounts import seconds_text, share
from looseleaf.planner.plan import SHOWN, Plan
from looseleaf.planner.replay import Replay
from looseleaf.planner.slo import as_lines
from looseleaf.planner.summary import Summary, as_json, as_text
from looseleaf.planner.trace_types import Trace, bad_row_lines, first_bad_rows

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace) -> None:
    outputs = Outputs(options)
    if options.price_per_hour is not None and not options.search:
        raise ConfigError("--price-per-hour is for --search: leave it out, or add --slo and it")
    if options.sweep:
        plan_sweep.run(options)
    elif options.search:
        plan_search.run(options)
    else:
        _run(options, outputs)


def _run(options: argparse.Namespace, outputs: Outputs) -> None:
    deployed = deployment(options)
    trace = workload(options)
    start = time.perf_counter()
    with (
        percents("requests", len(trace.requests)) as on_progress,
        _recorder(options, deployed) as recorder,
    ):

        def watch(replay: Replay) -> None:
            outputs.on_replay(replay)
            if recorder is not None:
                replay.watch_steps(recorder.watch(replay.engine))

        plan = played(options, deployed, trace, on_progress, watch)
    seconds = time.perf_counter() - start
    num_tokens = plan.summary.prompt_tokens + plan.summary.output_tokens
    print(
        f"replayed {num_tokens} tokens in {seconds:.1f} s, "
        f"{1e6 * seconds / max(1, num_tokens):.2f} us a token",
        file=sys.stderr,
    )
    report = _report(options, deployed, trace, plan)
    outputs.add_to(report, deployed, trace, plan)
    for written in outputs.write(report, plan):
        print(written, file=sys.stderr)
    if options.json:
        print_json(report)
    else:
        print(_text(report, plan))


def _recorder(
    options: argparse.Namespace, deployed: Deployment
) -> PlanRecorder | nullcontext[None]:
    if options.studio_record is None:
        return nullcontext()
    return PlanRecorder(
        options.studio_record,
        options.studio_record_limit,
        model=deployed.fitted.shape.name,
        block_bytes=deployed.memory.block_bytes,
    )


def _report(
    options: argparse.Namespace, deployed: Deployment, trace: Trace, plan: Plan
) -> dict[str, Any]:
    memory, settings = plan.memory, plan.settings
    hardware, fitted, timing = deployed.hardware, deployed.fitted, deployed.timing
    report: dict[str, Any] = {
        "trace": {
            "file": options.trace.name,
            "requests": len(trace.requests),
            "bad_rows": len(trace.bad_rows),
            "first_bad_rows": first_bad_rows(trace.bad_rows),
            "rate": options.rate,
            "speed": options.speed,
            "users": trace.users,
            "seed": options.seed or 0 if options.rate is not None else options.seed,
        },
        "model": fitted.shape.name,
        "weights_dtype": fitted.weights_dtype,
        "kv_cache_dtype": fitted.kv_dtype,
        "hardware": hardware.name,
        "hardware_title": hardware.title,
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
        "swap": swap_report(plan, deployed.swap_bandwidth),
        "disk": disk_report(plan, deployed.disk_speed, assumed=options.disk_bandwidth is None),
        "summary": as_json(plan.summary),
        "first_refused": [refused._asdict() for refused in plan.result.refused[:SHOWN]],
        "warnings": list(plan.warnings),
    }
    if plan.replicas:
        report["replicas"] = {
            "num_replicas": len(plan.replicas),
            "routing": plan.routing,
            "summaries": [as_json(one) for one in plan.replicas],
        }
    if options.slo is not None:
        report["slo"] = options.slo.as_json(plan.result.outcomes)
    return report


def _text(report: dict[str, Any], plan: Plan) -> str:
    cache, cost = report["kv_cache"], report["cost_model"]
    lines = [
        f"{report['model']} ({report['weights_dtype']}, KV {report['kv_cache_dtype']}) on "
        f"{report['tensor_parallel_size']} x {report['hardware']}; KV cache "
        f"{format_bytes(cache['bytes'])}, {cache['num_blocks']} blocks of {cache['block_size']}",
        f"step times: {cost['name']}; error: {cost['known_error']}",
        "",
        as_text(plan.summary),
    ]
    lines += tiers_text(report)
    if plan.replicas:
        lines += ["", f"{len(plan.replicas)} replicas, {plan.routing}; above, one on average:"]
        lines += _replicas(plan.replicas)
    if "slo" in report:
        lines += ["", *as_lines(report["slo"])]
    lines += bad_row_lines(report["trace"]["bad_rows"], report["trace"]["first_bad_rows"])
    lines += outputs_text(report)
    if plan.warnings:
        lines += ["", *(f"warning: {warning}" for warning in plan.warnings)]
    return "\n".join(lines)


def _replicas(summaries: Sequence[Summary]) -> list[str]:
    rows = [("", "requests", "prompt", "output", "hits", "KV peak", "ttft p95", "tpot p95")]
    for number, one in enumerate(summaries, 1):
        rows.append(
            (
                str(number),
                str(one.requests),
                str(one.prompt_tokens),
                str(one.output_tokens),
                share(one.hit_rate),
                share(one.kv_used_peak),
                "-" if one.ttft is None else seconds_text(one.ttft.p95),
                "-" if one.tpot is None else seconds_text(one.tpot.p95),
            )
        )
    return ["".join(f"{cell:>10}" for cell in row) for row in rows]
