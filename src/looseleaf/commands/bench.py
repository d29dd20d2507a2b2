"""`looseleaf bench`"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from looseleaf.bench.machine import (
    machine,
    peak_memory_mib,
    reset_peak_memory,
)
from looseleaf.bench.progress import progress
from looseleaf.bench.workloads import WORKLOADS, Workload
from looseleaf.commands.options import (
    add_engine,
    add_execution,
    add_json,
    add_model,
    add_profile,
    at_least,
    engine_settings,
    execution_settings,
    print_json,
)
from looseleaf.engine.settings import KV_CACHE_DTYPES
from looseleaf.weights.source import resolve

Benchmark = Callable[[argparse.Namespace], None]

KERNELS = {
    "gemm": "matrix products alone, against the machine's peak",
    "attention": "attention alone: blocks shuffled or in order, a prefix shared or not",
    "startup": "from the start of a process to its first token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure speed and memory. Without a name: say what can be measured."
    parser.set_defaults(benchmark=_list)
    names = parser.add_subparsers(title="benchmarks", metavar="NAME")

    def add(name: str, summary: str, benchmark: Benchmark, rounds: int) -> argparse.ArgumentParser:
        command = names.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=parser.formatter_class,
        )
        command.set_defaults(benchmark=benchmark)
        add_model(command)
        add_json(command)
        command.add_argument(
            "--rounds", type=at_least(1), default=rounds, metavar="N", help="take medians of N runs"
        )
        return command

    for workload in WORKLOADS.values():
        _add_workload(add(workload.name, workload.description, _run_workloads, 3), [workload])
    _add_workload(
        add("all", "all workloads, one after the other", _run_workloads, 3),
        list(WORKLOADS.values()),
    )
    gemm = add("gemm", KERNELS["gemm"], _run_gemm, 5)
    gemm.add_argument(
        "--shapes",
        metavar="NxK",
        help="outputs x inputs, several with commas between (default: those of the model)",
    )
    gemm.add_argument("--type", default="q4", help="packed type of the weights of --shapes")
    _add_threads(gemm)
    attention = add("attention", KERNELS["attention"], _run_attention, 5)
    attention.add_argument(
        "--kv-type",
        default="f32",
        choices=KV_CACHE_DTYPES[1:],
        help="how keys and values are stored; integers at block sizes that are multiples of 8",
    )
    _add_threads(attention)
    add_execution(add("startup", KERNELS["startup"], _run_startup, 5))


def run(options: argparse.Namespace) -> None:
    options.benchmark(options)


def _add_workload(parser: argparse.ArgumentParser, workloads: list[Workload]) -> None:
    parser.set_defaults(workloads=workloads)
    parser.add_argument(
        "--warmup", type=at_least(0), default=1, metavar="N", help="runs before those that count"
    )
    add_engine(parser)
    add_profile(parser)


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=at_least(1),
        metavar="N",
        help="threads to compute with (default: the physical cores this process may use)",
    )


def _list(_: argparse.Namespace) -> None:
    for workload in WORKLOADS.values():
        print(f"{workload.name:18}  {workload.description}")
    print(f"{'all':18}  all of these")
    for name, summary in KERNELS.items():
        print(f"{name:18}  {summary}")


def _run_workloads(options: argparse.Namespace) -> None:
    # Only now: the list and the help need no engine.
    from looseleaf.bench.profile import profile_json, show_profile, start_profile
    from looseleaf.bench.rounds import check_fits, measure
    from looseleaf.bench.tables import show_workloads
    from looseleaf.engine.build import build
    from looseleaf.engine.llm import LLM

    settings = engine_settings(options)
    results = []
    for workload in options.workloads:
        reset_peak_memory()
        # An engine for each, so that its memory is its own.
        with LLM(stack=build(settings)) as llm:
            for other in options.workloads:
                check_fits(llm, other)  # before any of them takes its time
            if options.profile:
                start_profile(llm.engine)
            with progress(workload.name, options.warmup + options.rounds) as advance:
                figures = measure(
                    llm, workload, rounds=options.rounds, warmup=options.warmup, advance=advance
                )
            if options.profile and options.json:
                figures["profile"] = profile_json(llm.engine)
            elif options.profile:
                show_profile(llm.engine)
        results.append(
            {
                "workload": workload.name,
                **figures,
                "peak_rss_mib": peak_memory_mib(),
                "executor": llm.stack.settings.executor,
                "kv_cache_dtype": llm.stack.settings.kv_cache_dtype,
                "threads": llm.stack.settings.threads,
                **_circumstances(options),
            }
        )
    if not options.json:
        show_workloads(results)
    elif len(results) == 1:
        print_json(results[0])
    else:
        print_json({result["workload"]: result for result in results})


def _run_gemm(options: argparse.Namespace) -> None:
    from looseleaf.bench.gemm import ROWS, measure_products, passes
    from looseleaf.bench.kernels import kernels
    from looseleaf.bench.shapes import check_packed_type, model_shapes, parse_shapes
    from looseleaf.bench.tables import show_products

    check_packed_type(options.type)

    functions = kernels()
    if options.shapes is None:
        counts = model_shapes(resolve(options.model, cache_dir=options.cache_dir)).products
        products = list(counts)
    else:
        counts, products = {}, parse_shapes(options.shapes, options.type)
    with progress("products", len(products) * len(ROWS)) as advance:
        figures = measure_products(
            functions, products, threads=_threads(options), rounds=options.rounds, advance=advance
        )
    figures["passes"] = passes(counts, figures["products"]) if counts else []
    figures["threads"] = _threads(options)
    _report(options, "gemm", figures, show_products)


def _run_attention(options: argparse.Namespace) -> None:
    from looseleaf.bench.attention import (
        Attention,
        block_sizes_for,
        measure_attention,
        num_comparisons,
    )
    from looseleaf.bench.kernels import kernels
    from looseleaf.bench.shapes import model_shapes
    from looseleaf.bench.tables import show_attention

    shapes = model_shapes(resolve(options.model, cache_dir=options.cache_dir))
    block_sizes = block_sizes_for(options.kv_type, shapes.head_dim)
    attention = Attention(
        kernels(),
        shapes,
        threads=_threads(options),
        kv_type=options.kv_type,
        rounds=options.rounds,
    )
    with progress("comparisons", num_comparisons(block_sizes)) as advance:
        figures = measure_attention(attention, block_sizes, advance)
    figures |= {"kv_type": options.kv_type, "threads": _threads(options)}
    _report(options, "attention", figures, show_attention)


def _run_startup(options: argparse.Namespace) -> None:
    from looseleaf.bench.startup import measure_startup
    from looseleaf.bench.tables import show_startup
    from looseleaf.engine.build import resolve_settings

    used = resolve_settings(execution_settings(options))
    resolve(options.model, cache_dir=options.cache_dir)  # no download is to be measured
    command = [sys.executable, "-m", "looseleaf", "generate", "--model", options.model]
    command += ["--prompt", "The capital of France is", "--max-tokens", "1", "--ignore-eos"]
    command += ["--executor", options.executor, "--kv-cache-dtype", options.kv_cache_dtype]
    command += ["--activations", options.activations]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    if not options.cache_weights:
        command.append("--no-cache-weights")
    with progress("starts", 1 + options.rounds) as advance:
        figures = measure_startup(command, options.rounds, advance)
    figures |= {
        "executor": used.executor,
        "kv_cache_dtype": used.kv_cache_dtype,
        "threads": used.threads,
    }
    _report(options, "startup", figures, show_startup)


def _report(
    options: argparse.Namespace,
    name: str,
    figures: dict[str, Any],
    show: Callable[[dict[str, Any]], None],
) -> None:
    result = {"workload": name, **figures, **_circumstances(options)}
    result.setdefault("rounds", options.rounds)
    if options.json:
        print_json(result)
    else:
        show(result)


def _threads(options: argparse.Namespace) -> int:
    from looseleaf.engine.cores import physical_cores

    return options.threads or physical_cores()


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    return {"model": options.model, "machine": machine()}
