"""`looseleaf reproduce`"""

import argparse
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.device_options import add_tensor_parallel_size
from looseleaf.commands.options import add_json, at_least, print_json
from looseleaf.core.errors import ConfigError
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.hit_rate import HitRate, hit_rate
from looseleaf.planner.live_hits import Deployment, LiveHits, live_hits
from looseleaf.planner.models import load_shape
from looseleaf.planner.paper.figure import WIDTH, Figure, as_json, as_text
from looseleaf.planner.paper.reproduce import ASSUMED, FIGURES
from looseleaf.planner.paper.trials import Trials
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.trace_types import Trace, bad_row_lines, first_bad_rows

CAPACITIES = (1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 97_656, 100_000)
"""5,859 and 97,656 blocks of 512 are the 3 and 50 million tokens of the Mooncake paper."""

LIVE_CAPACITIES = (10_000,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "An example: looseleaf reproduce sosp23 --figure 2,13"
    papers = parser.add_subparsers(dest="paper", metavar="PAPER", required=True)
    summary = "the figures of the PagedAttention paper (Kwon et al., SOSP 2023), beside ours"
    paper = papers.add_parser(
        "sosp23", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    paper.add_argument(
        "--figure",
        type=_figures,
        default=tuple(FIGURES),
        metavar="NAMES",
        help=f"only these, of {', '.join(FIGURES)}",
    )
    paper.add_argument("--quick", action="store_true", help="shorter runs, less exact")
    paper.add_argument("--seed", type=int, default=0, help="of lengths and arrivals")
    add_json(paper)
    summary = "hit rates of a trace that says what prompts share, as of the Mooncake traces"
    mooncake = papers.add_parser(
        "mooncake", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    _add_hits(mooncake)
    add_json(mooncake)


def _add_hits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        type=Path,
        required=True,
        metavar="FILE",
        help="requests with hash_ids, as JSON lines, or what `looseleaf serve --record` wrote",
    )
    parser.add_argument(
        "--capacity",
        type=_blocks,
        default=CAPACITIES,
        metavar="BLOCKS",
        help="sizes of the cache, like 1000,30000, in the trace's blocks (default: "
        f"{','.join(map(str, CAPACITIES))})",
    )
    parser.add_argument(
        "--live",
        type=_blocks,
        default=LIVE_CAPACITIES,
        metavar="BLOCKS",
        help="sizes with which the engine replays the trace as well; 0 for none (default: "
        f"{','.join(map(str, LIVE_CAPACITIES))})",
    )
    parser.add_argument(
        "--model", "-m", default="meta-llama/Llama-3.1-8B", help="for the replays, as in `plan`"
    )
    parser.add_argument(
        "--hardware", default="h200-141gb", metavar="NAME|FILE.yaml", help="for the replays"
    )
    add_tensor_parallel_size(parser, default=2)
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="only the first N requests")


def _figures(text: str) -> tuple[str, ...]:
    """For `type=` of an option."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no figure {unknown[0][:20]!r} here: choose of {', '.join(FIGURES)}"
        )
    return names


def _blocks(text: str) -> tuple[int, ...]:
    """For `type=` of an option."""
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = (-1,)
    if sizes[0] < 0:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no list of sizes: write numbers of blocks, like 1000,30000"
        )
    return tuple(size for size in sizes if size)


def run(options: argparse.Namespace) -> None:
    if options.paper == "sosp23":
        _reproduce(options)
    else:
        _hit_rates(options)


def _reproduce(options: argparse.Namespace) -> None:
    trials = Trials(options.seed, quick=options.quick)
    if options.json:
        with progress("figures", len(options.figure)) as advance:
            figures = _run_figures(options.figure, trials, lambda _: advance())
        print_json(
            {
                "paper": "sosp23",
                "seed": options.seed,
                "quick": options.quick,
                "assumed": ASSUMED,
                "figures": [as_json(figure) for figure in figures],
            }
        )
        return
    # No bar: each figure is shown as soon as it is there.
    figures = _run_figures(
        options.figure, trials, lambda figure: print(f"{as_text(figure)}\n", flush=True)
    )
    near = sum(figure.is_near(cell) for figure in figures for *_, cell in figure.compared())
    compared = sum(1 for figure in figures for _ in figure.compared())
    print(f"In range: {near} of {compared} numbers that the paper prints.\n")
    print("\n".join(textwrap.wrap(f"Assumed: {ASSUMED}", WIDTH)))


def _run_figures(
    names: Sequence[str], trials: Trials, done: Callable[[Figure], None]
) -> list[Figure]:
    figures, taken = [], {}
    for name in names:
        start = time.process_time()
        figures.append(FIGURES[name](trials))
        taken[name] = time.process_time() - start
        done(figures[-1])
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in taken.items())
    print(f"{sum(taken.values()):.1f} s of a processor: {shown}", file=sys.stderr)
    return figures


def _hit_rates(options: argparse.Namespace) -> None:
    trace = read_workload(options.trace)
    trace = trace._replace(requests=trace.requests[: options.limit])
    if not any(request.hash_ids for request in trace.requests):
        raise ConfigError(
            f"{options.trace.name} does not say what prompts share: its rows need hash_ids"
        )
    infinite = hit_rate(trace)
    with progress("capacities", len(options.capacity)) as advance:
        curve = []
        for capacity in options.capacity:
            curve.append(hit_rate(trace, capacity))
            advance()
    last_half = hit_rate(trace, since=len(trace.requests) // 2)
    live = _live(options, trace) if options.live else []
    report = _report(options, trace, [*curve, infinite], last_half, live)
    if options.json:
        print_json(report)
    else:
        print(_text(report))


def _live(options: argparse.Namespace, trace: Trace) -> list[tuple[HitRate, LiveHits]]:
    if not trace.timed:
        raise ConfigError("the trace has no times, so nothing is live: pass --live 0")
    deployment = Deployment(
        load_shape(options.model), load_hardware(options.hardware), options.tensor_parallel_size
    )
    found = []
    start = time.perf_counter()
    with progress("requests", len(options.live) * len(trace.requests)) as advance:
        for capacity in options.live:
            replayed = live_hits(trace, deployment, capacity, on_progress=lambda _: advance())
            found.append((hit_rate(trace, capacity), replayed))
    print(f"replayed in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return found


def _report(
    options: argparse.Namespace,
    trace: Trace,
    curve: list[HitRate],
    last_half: HitRate,
    live: list[tuple[HitRate, LiveHits]],
) -> dict[str, Any]:
    return {
        "trace": options.trace.name,
        "requests": len(trace.requests),
        "bad_rows": len(trace.bad_rows),
        "first_bad_rows": first_bad_rows(trace.bad_rows),
        "block_size": trace.hashed_tokens,
        "window": "the whole trace, from an empty cache",
        "curve": [rate._asdict() for rate in curve],
        "last_half_only": last_half._asdict(),
        "live": [
            {
                "model": options.model,
                "hardware": options.hardware,
                "tensor_parallel_size": options.tensor_parallel_size,
                **replayed.rate._asdict(),
                "lru": lru._asdict(),
                "refused": replayed.summary.refused,
                "preemptions": replayed.summary.preemptions,
                "running_mean": replayed.summary.running_mean,
                "waiting_mean": replayed.summary.waiting_mean,
                "ttft_p50": replayed.summary.ttft.p50 if replayed.summary.ttft else None,
            }
            for lru, replayed in live
        ],
    }


def _text(report: dict[str, Any]) -> str:
    size, infinite = report["block_size"], report["curve"][-1]
    lines = [
        f"{report['trace']}: {report['requests']} requests, blocks of {size} tokens, "
        f"{report['bad_rows']} rows not used; window: {report['window']}",
        "",
        f"{'capacity, blocks':>18}{'tokens':>16}{'% of blocks':>14}{'% of tokens':>14}"
        f"{'of infinite':>14}",
    ]
    for rate in report["curve"]:
        blocks = rate["capacity"]
        name = "infinite" if blocks is None else f"{blocks:,}"
        tokens = "" if blocks is None else f"{blocks * size:,}"
        share = rate["by_blocks"] / infinite["by_blocks"] if infinite["by_blocks"] else 0.0
        lines.append(
            f"{name:>18}{tokens:>16}{100 * rate['by_blocks']:>14.2f}"
            f"{100 * rate['by_tokens']:>14.2f}{share:>14.1%}"
        )
    last = report["last_half_only"]
    lines += [
        "",
        f"over the last half of the trace only, infinite: {100 * last['by_blocks']:.2f}% of "
        f"blocks, {100 * last['by_tokens']:.2f}% of tokens",
    ]
    for live in report["live"]:
        lines += [
            "",
            f"live, {live['capacity']:,} blocks of {size} that running requests share, "
            f"{live['model']} on {live['tensor_parallel_size']} x {live['hardware']}, "
            f"{report['window']}:",
            f"  {100 * live['by_blocks']:.2f}% of blocks, {100 * live['by_tokens']:.2f}% of tokens "
            f"(LRU of the same size {100 * live['lru']['by_blocks']:.2f} and "
            f"{100 * live['lru']['by_tokens']:.2f}, infinite {100 * infinite['by_blocks']:.2f} and "
            f"{100 * infinite['by_tokens']:.2f})",
            f"  {live['running_mean']:.1f} running and {live['waiting_mean']:.1f} waiting on "
            f"average, {live['preemptions']} preemptions, {live['refused']} refused",
        ]
    lines += bad_row_lines(report["bad_rows"], report["first_bad_rows"])
    return "\n".join(lines)
