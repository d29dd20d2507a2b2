"""Our speed next to that of other engines: same model, machine, token ids and numbers of tokens.

    python benchmarks/peers.py --install llama_cpp openvino_genai
    python benchmarks/peers.py --list
    python benchmarks/peers.py [--peers PEER ...] [--workloads NAME ...] [--rounds N] [--json]
    python benchmarks/peers.py --perplexity FILE [--chunks N]

Everybody takes turns, round after round, each time in a new process that warms up before it is
measured, so that all meet the same machine and nobody another's leftovers. Peers come from public
packages at pinned versions into build/peers; llama.cpp is compiled there, which takes half an hour.
Each runs with the settings that serve it best here. Figures are medians over rounds; ratios say how
many times better ours is than the best peer, as a median over rounds of what the two did in the
same one.
"""

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts
from peers.adapters import llama_cpp, looseleaf
from peers.peer import Peer
from peers.processes import PeerError
from peers.registry import PEERS, Variant, installed, select
from peers.tasks import TASKS, Figures, Measure, Task, figures, request

from looseleaf.bench.machine import usable_cores
from looseleaf.engine.build import load_text
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import resolve

MODEL = "smollm2-135m"
OURS = looseleaf.Looseleaf.name
CONTEXT = 512

Rounds = dict[str, list[Figures]]
"""What each contestant did in each round of a task."""


class Comparison:
    """Runs tasks on ours and on peers. A contestant that fails in a task is left out of the rest of
    it, and why is in `errors`."""

    def __init__(self, ours: looseleaf.Looseleaf, peers: Sequence[Variant], options: Any) -> None:
        self._ours = ours
        self._peers = {f"{peer.name}:{variant}": (peer, variant) for peer, variant in peers}
        self._threads: int = options.threads
        self._timeout_s: float = options.timeout
        self._vocab_size = vocab_size(resolve(MODEL))
        self.results: dict[str, Rounds] = {}
        self.errors: dict[str, dict[str, str]] = {}

    @property
    def contestants(self) -> list[str]:
        return [OURS, *self._peers]

    def run(self, tasks: Sequence[Task], rounds: int) -> None:
        for task in tasks:
            self.results[task.name] = {name: [] for name in self.contestants}
            self.errors[task.name] = {}
        for index in range(rounds):
            for task in tasks:
                for name in self.contestants:
                    if name not in self.errors[task.name]:
                        print(f"round {index + 1}: {task.name}: {name}", file=sys.stderr)
                        self._try(task, name)

    def _try(self, task: Task, name: str) -> None:
        try:
            result = self._measure(task, name)
        except PeerError as error:
            print(f"  {error}", file=sys.stderr)
            self.errors[task.name][name] = str(error)
            self.results[task.name][name].clear()
        else:
            self.results[task.name][name].append(result)

    def _measure(self, task: Task, name: str) -> Figures:
        if name == OURS:
            return self._ours.run(task, self._timeout_s)
        peer, variant = self._peers[name]
        asked = request(
            task,
            model=str(peer.model(variant)),
            threads=self._threads,
            vocab_size=self._vocab_size,
        )
        return figures(task, peer.run(asked, self._timeout_s))


def vocab_size(model: Path) -> int:
    with GGUFFile(model) as file:
        return load_text(file).tokenizer.vocab_size


def medians(rounds: Sequence[Figures]) -> dict[str, float | None]:
    """Of every figure that is a number in all rounds; None for one that is not."""
    result: dict[str, float | None] = {}
    for key, value in rounds[0].items() if rounds else ():
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            values = [figures[key] for figures in rounds]
            result[key] = None if None in values else median(values)
    return result


def best_peer(measure: Measure, table: Mapping[str, Mapping[str, float | None]]) -> str | None:
    """The peer with the best median, if any of them has one."""
    values = {
        name: value
        for name, row in table.items()
        if name != OURS and (value := row.get(measure.key)) is not None
    }
    choose = max if measure.higher_is_better else min
    return choose(values, key=lambda name: values[name]) if values else None


def ratio(measure: Measure, ours: Sequence[Figures], peer: Sequence[Figures]) -> float | None:
    """How many times better ours is, as a median over rounds."""
    pairs = [(a[measure.key], b[measure.key]) for a, b in zip(ours, peer, strict=False)]
    if not pairs or any(None in pair for pair in pairs):
        return None
    return median(measure.times_better(a, b) for a, b in pairs)


def summarize(task: Task, rounds: Rounds, errors: Mapping[str, str]) -> dict[str, Any]:
    """A task's results for the report."""
    table = {name: medians(results) for name, results in rounds.items()}
    ratios = {}
    for measure in task.measures:
        best = best_peer(measure, table)
        if best is not None:
            times = ratio(measure, rounds[OURS], rounds[best])
            ratios[measure.key] = {"best_peer": best, "times_better": times}
    return {
        "medians": table,
        "rounds": rounds,
        "errors": dict(errors),
        "ours_to_best_peer": ratios,
    }


def print_table(report: Mapping[str, Any]) -> None:
    labels = {name: engine["label"] for name, engine in report["engines"].items()}
    for task_name, results in report["tasks"].items():
        task = TASKS[task_name]
        columns = [*((m.key, m.label) for m in task.measures), *_details(task)]
        print(f"\n{task.name}: {task.description}")
        print(" " * 26 + "".join(f"{label:>18}" for _, label in columns))
        for name, row in results["medians"].items():
            size = {"size_mib": report["engines"][name]["size_mib"]}
            cells = [_number((row | size).get(key)) for key, _ in columns]
            if name in results["errors"]:
                cells = [f"   failed: {results['errors'][name][:80]}"]
            print(f"  {labels[name]:24}" + "".join(f"{cell:>18}" for cell in cells))
        ratios = results["ours_to_best_peer"]
        if ratios:
            found = [ratios.get(m.key, {}) for m in task.measures]
            names = [labels.get(one.get("best_peer"), "-") for one in found]
            times = [_number(one.get("times_better")) for one in found]
            print(f"  {'best peer':24}" + "".join(f"{name:>18}" for name in names))
            print(f"  {'times ours is better':24}" + "".join(f"{value:>18}" for value in times))
    print(f"\nmedians of {report['rounds']} runs in turn, {report['threads']} threads, {MODEL}")
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))


def _details(task: Task) -> list[tuple[str, str]]:
    if task.workload is None:
        return [("peak_rss_mib", "memory, MiB"), ("size_mib", "on disk, MiB")]
    return [
        ("max_ttft_ms", "last starts, ms"),
        ("tpot_ms", "ms per token"),
        ("peak_rss_mib", "memory, MiB"),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def engines(peers: Sequence[Variant], executor: str) -> dict[str, Any]:
    """What each contestant is, by name."""
    described = {OURS: {"label": f"looseleaf {executor}", "size_mib": looseleaf.size_mib()}}
    for peer, variant in peers:
        described[f"{peer.name}:{variant}"] = {
            "label": f"{peer.label} {variant}",
            "version": peer.version,
            "size_mib": peer.size_mib(),
        }
    return described


def compare(options: argparse.Namespace) -> None:
    peers = select(options.peers) if options.peers else installed()
    if not peers:
        print("no peer is installed: --install fetches them", file=sys.stderr)
    ours = looseleaf.Looseleaf(executor=options.executor, threads=options.threads)
    tasks = [TASKS[name] for name in options.workloads]
    report = {
        "machine": facts(),
        "model": MODEL,
        "threads": options.threads,
        "rounds": options.rounds,
        "engines": engines(peers, options.executor),
    }
    comparison = Comparison(ours, peers, options)
    comparison.run(tasks, options.rounds)
    report["tasks"] = {
        task.name: summarize(task, comparison.results[task.name], comparison.errors[task.name])
        for task in tasks
    }
    if options.json:
        print(json.dumps(report))
    else:
        print_table(report)


def show_peers(options: argparse.Namespace) -> None:
    rows = []
    for peer in PEERS.values():
        there = [variant for variant in peer.variants if peer.model(variant).exists()]
        size = round(peer.size_mib()) if there else None
        rows.append(
            {"name": peer.name, "version": peer.version, "installed": there, "size_mib": size}
        )
        if not options.json:
            state = f"{', '.join(there)} ({size} MiB)" if there else "not installed"
            print(f"{peer.name:16} {peer.version:12} {state}")
    if options.json:
        print(json.dumps(rows))


def install(names: Sequence[str]) -> None:
    """Install one after the other; what cannot be installed keeps nobody else from it."""
    failed = []
    for name in names:
        print(f"{name}:", file=sys.stderr)
        try:
            peer: Peer = PEERS[name]
            peer.install(resolve(MODEL))
        except PeerError as error:
            print(f"  {error}", file=sys.stderr)
            failed.append(name)
    if failed:
        raise PeerError(f"not installed: {', '.join(failed)}")


def show_perplexity(options: argparse.Namespace) -> None:
    """llama.cpp's own figures, to hold those of `looseleaf perplexity` against."""
    chosen = select(options.peers or [f"{llama_cpp.LlamaCpp.name}:q4_1"])
    rows = {}
    for peer, variant in chosen:
        if not isinstance(peer, llama_cpp.LlamaCpp):
            raise PeerError(f"{peer.name} has no tool for perplexity, llama_cpp has")
        value, error = llama_cpp.perplexity(
            peer.model(variant),
            options.perplexity,
            context=CONTEXT,
            chunks=options.chunks,
            threads=options.threads,
            timeout_s=options.timeout,
        )
        rows[variant] = {"perplexity": value, "standard_error": error, "context": CONTEXT}
    if options.json:
        print(json.dumps(rows))
        return
    for variant, row in rows.items():
        print(f"llama.cpp {variant}: {row['perplexity']} +- {row['standard_error']}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER[:VARIANT]")
    parser.add_argument("--workloads", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3, help="runs of everybody, in turn")
    parser.add_argument("--executor", default="native", help="which of ours")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="for everybody")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--install", nargs="+", choices=PEERS, metavar="PEER", help="and no more")
    action.add_argument("--list", action="store_true", help="say what is installed")
    action.add_argument("--perplexity", type=Path, metavar="FILE", help="llama.cpp's of a text")
    parser.add_argument("--chunks", type=int, default=-1, help="windows of the text (default: all)")
    return parser.parse_args()


def main() -> None:
    options = parse()
    # An ordinary exit, on which whatever was started is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if options.install:
            install(options.install)
        elif options.list:
            show_peers(options)
        elif options.perplexity is not None:
            show_perplexity(options)
        else:
            compare(options)
    except PeerError as error:
        raise SystemExit(f"peers.py: {error}") from None


if __name__ == "__main__":
    main()
