"""What paging and prefix caching are worth on the real engine.

    python benchmarks/headline.py [allocators] [rag] [evaluation] [chat] [--json]

`allocators`: the same requests, on the same KV memory (room for `--reservations` sequences of the
longest length), with KV memory reserved per request in three ways (contiguous-max, -pow2, -oracle:
section 6.1 of Kwon et al., 2023) and paged: how many requests run at once, where the memory goes,
throughput and latency. Lengths are those of ShareGPT conversations as recorded in `--trace`, or
drawn from the demo's mix where that file is not there.

`rag`, `evaluation`, `chat`: requests that begin alike, with prefix caching on and off: hit rate,
KV memory, throughput, time to the first token.

Model and token ids are the same for all; ids are random, for nothing here depends on their meaning.
Settings take turns, round after round; figures are medians over rounds.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from machine import facts

from looseleaf.core.step import Step, StepResult
from looseleaf.demo.waste import draw_lengths
from looseleaf.engine.llm import LLM
from looseleaf.engine.usage import Usage, usage
from looseleaf.sampling.params import SamplingParams

TRACE = Path(__file__).resolve().parents[2] / "shared/traces/llmservingsim/sharegpt-300.jsonl"
CHATS_AT_ONCE = 16
ALLOCATORS = ("contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged")


class Call(NamedTuple):
    """A request: its prompt, and how many tokens it generates, whatever they are."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Scenario:
    """Requests in waves: each wave is sent when the one before has been answered."""

    name: str
    about: str
    waves: list[list[Call]]
    settings: dict[str, Any]


class Watch:
    """Looks at the memory after every step, and notes when each request got its first token."""

    def __init__(self, llm: LLM) -> None:
        self._scheduler = llm.engine.scheduler
        self.usages: list[Usage] = []
        self.num_running: list[int] = []
        self.first_tokens: dict[str, float] = {}
        llm.engine.observers.append(self._see)

    def _see(self, step: Step, result: StepResult) -> None:
        now = time.perf_counter()
        for sample in step.samples():
            self.first_tokens.setdefault(sample.request_id, now)
        running = list(self._scheduler.running)
        if running:
            self.usages.append(usage(self._scheduler.allocator, running))
            self.num_running.append(len(running))


def run(llm: LLM, waves: Sequence[Sequence[Call]]) -> dict[str, float]:
    """Answer all calls; the prefix cache is as it is."""
    watch = Watch(llm)
    scheduler = llm.engine.scheduler
    preemptions = scheduler.counters.preemptions
    waits: list[float] = []
    latencies: list[float] = []
    num_prompt = num_cached = num_output = 0
    start = time.perf_counter()
    for calls in waves:
        sent = time.perf_counter()
        outputs = llm.generate(
            [call.prompt for call in calls],
            [
                SamplingParams(temperature=0, max_tokens=call.max_tokens, ignore_eos=True)
                for call in calls
            ],
            use_tqdm=False,
        )
        for output in outputs:
            waits.append(watch.first_tokens[f"{output.request_id}/0"] - sent)
            num_prompt += len(output.prompt_token_ids)
            num_cached += output.num_cached_tokens
            num_output += len(output.outputs[0].token_ids)
        latencies.append(time.perf_counter() - sent)
    wall = time.perf_counter() - start
    llm.engine.observers.clear()
    num_calls = sum(map(len, waves))
    held = [use.allocated for use in watch.usages]
    return {
        "wall_s": wall,
        "requests_per_s": num_calls / wall,
        "output_tokens_per_s": num_output / wall,
        "ttft_p50_s": median(waits),
        "ttft_p95_s": sorted(waits)[min(len(waits) - 1, int(0.95 * len(waits)))],
        "mean_running": sum(watch.num_running) / len(watch.num_running),
        "most_running": max(watch.num_running),
        "hit_rate": num_cached / num_prompt,
        "kv_peak_tokens": max(held),
        "preemptions": scheduler.counters.preemptions - preemptions,
        **_split(watch.usages),
    }


def _split(usages: Sequence[Usage]) -> dict[str, float]:
    """Where the slots that are held were, on average over the run: fractions of 1 that add up."""
    total = sum(use.allocated for use in usages)
    names = ("stored", "reserved", "internal", "external")
    split = {name: sum(getattr(use, name) for use in usages) / total for name in names}
    return split | {"waste": split["internal"] + split["external"]}


def sharegpt(trace: Path, count: int, max_length: int, rng: random.Random) -> list[Call]:
    """Calls of the trace's lengths, cut to what fits."""
    if trace.exists():
        rows = [json.loads(line) for line in trace.read_text().splitlines()]
        lengths = [(row["input_length"], row["output_length"]) for row in rows]
        rng.shuffle(lengths)
    else:
        print(f"{trace} is not there: lengths are the demo's mix", file=sys.stderr)
        totals = draw_lengths(count, 0)
        lengths = [(max(1, total // 2), max(1, total - total // 2)) for total in totals]
    calls = []
    for prompt, output in lengths[:count]:
        prompt = min(prompt, max_length // 2)
        calls.append(Call(tokens(rng, prompt), max(1, min(output, max_length - prompt))))
    return calls


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000, 40_000) for _ in range(count)]


def rag(rng: random.Random, scale: float) -> Scenario:
    document = tokens(rng, 3000)
    calls = [Call(document + tokens(rng, 30), 32) for _ in range(int(100 * scale))]
    return Scenario("rag", "one document of 3,000 tokens, questions of 30", [calls], {})


def evaluation(rng: random.Random, scale: float) -> Scenario:
    examples = tokens(rng, 800)
    calls = [Call(examples + tokens(rng, 60), 1) for _ in range(int(1000 * scale))]
    return Scenario("evaluation", "800 tokens of examples, items of 60, one token", [calls], {})


def chat(rng: random.Random, scale: float) -> Scenario:
    system = tokens(rng, 800)
    calls = [Call(system + tokens(rng, 1200), 64) for _ in range(int(32 * scale))]
    waves = [calls[i : i + CHATS_AT_ONCE] for i in range(0, len(calls), CHATS_AT_ONCE)]
    about = f"2,000-token prompts, of which 800 are the system's, {CHATS_AT_ONCE} at once"
    return Scenario("chat", about, waves, {})


SCENARIOS: dict[str, Callable[[random.Random, float], Scenario]] = {
    "rag": rag,
    "evaluation": evaluation,
    "chat": chat,
}


def measure(
    make: Sequence[tuple[str, Callable[[], LLM]]], waves: Sequence[Sequence[Call]], rounds: int
) -> dict[str, dict[str, float]]:
    """Each setting in turn, on an engine of its own, round after round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in make}
    for index in range(rounds):
        for name, build in make:
            print(f"round {index + 1}: {name}", file=sys.stderr)
            with build() as llm:
                llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1), use_tqdm=False)
                found[name].append(run(llm, waves))
    return {
        name: {key: median(one[key] for one in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def compare_allocators(options: argparse.Namespace) -> dict[str, Any]:
    with LLM() as llm:
        token_bytes = llm.stack.memory.block_bytes // llm.stack.memory.block_size
        max_length = options.max_length or llm.stack.model_config.context_length
    calls = sharegpt(options.trace, options.requests, max_length, random.Random(0))
    results = {}
    for reservations in options.reservations:
        memory = reservations * max_length * token_bytes

        def build(allocator: str, memory: int = memory) -> LLM:
            return LLM(
                kv_allocator=allocator,
                kv_cache_memory=memory,
                max_model_len=max_length,
                enable_prefix_caching=False,
            )

        results[str(reservations)] = measure(
            [(name, lambda name=name: build(name)) for name in options.allocators],  # type: ignore[misc]
            [calls],
            options.rounds,
        )
    return {
        "requests": len(calls),
        "max_length": max_length,
        "mean_prompt": sum(len(call.prompt) for call in calls) / len(calls),
        "mean_output": sum(call.max_tokens for call in calls) / len(calls),
        "reservations": results,
        "ratios": {
            budget: {
                "most_running": found["paged"]["most_running"]
                / found["contiguous-max"]["most_running"],
                "throughput": found["paged"]["output_tokens_per_s"]
                / found["contiguous-max"]["output_tokens_per_s"],
            }
            for budget, found in results.items()
            if {"paged", "contiguous-max"} <= found.keys()
        },
    }


def compare_caching(scenario: Scenario, rounds: int) -> dict[str, Any]:
    def build(caching: bool) -> LLM:
        return LLM(
            max_model_len=4096,
            kv_cache_memory="2GiB",
            enable_prefix_caching=caching,
            **scenario.settings,
        )

    found = measure(
        [("on", lambda: build(True)), ("off", lambda: build(False))], scenario.waves, rounds
    )
    on, off = found["on"], found["off"]
    return {
        "about": scenario.about,
        "requests": sum(map(len, scenario.waves)),
        **found,
        "ratios": {
            "throughput": on["requests_per_s"] / off["requests_per_s"],
            "kv_peak": on["kv_peak_tokens"] / off["kv_peak_tokens"],
            "ttft_p95": on["ttft_p95_s"] / off["ttft_p95_s"],
        },
    }


def show(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows = (
        ("most at once", "most_running", "{:.0f}"),
        ("at once, mean", "mean_running", "{:.1f}"),
        ("output, tokens/s", "output_tokens_per_s", "{:.0f}"),
        ("requests/s", "requests_per_s", "{:.2f}"),
        ("first token, p50, s", "ttft_p50_s", "{:.2f}"),
        ("first token, p95, s", "ttft_p95_s", "{:.2f}"),
        ("prompt found stored", "hit_rate", "{:.1%}"),
        ("KV peak, tokens", "kv_peak_tokens", "{:.0f}"),
        ("holds tokens", "stored", "{:.1%}"),
        ("to be used yet", "reserved", "{:.1%}"),
        ("wasted", "waste", "{:.1%}"),
        ("preemptions", "preemptions", "{:.0f}"),
    )

    def table(title: str, found: dict[str, dict[str, float]]) -> None:
        made = Table(title=title, box=None)
        made.add_column("")
        for name in found:
            made.add_column(name, justify="right")
        for label, key, form in rows:
            made.add_row(label, *(form.format(one[key]) for one in found.values()))
        console.print(made)

    for name, result in results.items():
        if name == "allocators":
            for budget, found in result["reservations"].items():
                table(f"KV memory for {budget} sequences of {result['max_length']} tokens", found)
                ratios = result["ratios"].get(budget)
                if ratios is None:
                    continue
                console.print(
                    f"paged over contiguous-max: {ratios['most_running']:.1f} times the requests, "
                    f"{ratios['throughput']:.2f} times the throughput\n"
                )
        elif name in SCENARIOS:
            table(
                f"{name}: {result['about']}; prefix caching", {k: result[k] for k in ("on", "off")}
            )
            ratios = result["ratios"]
            console.print(
                f"on over off: {ratios['throughput']:.2f} times the throughput, "
                f"{ratios['kv_peak']:.2f} times the KV peak, "
                f"{ratios['ttft_p95']:.2f} times the P95 time to the first token\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("allocators", *SCENARIOS)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(names)}; all")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=64, help="of the allocators' comparison")
    parser.add_argument(
        "--max-length", type=int, help="of a sequence (default: the model's context)"
    )
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=ALLOCATORS)
    parser.add_argument("--reservations", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the scenarios' requests")
    parser.add_argument("--json", action="store_true", help="print one JSON object and no tables")
    options = parser.parse_args()
    for name in options.what:
        if name not in names:
            parser.error(f"{name!r} is not one of {', '.join(names)}")
    results: dict[str, Any] = {}
    for name in options.what or names:
        if name == "allocators":
            results[name] = compare_allocators(options)
        else:
            scenario = SCENARIOS[name](random.Random(0), options.scale)
            results[name] = compare_caching(scenario, options.rounds)
    results["machine"] = facts()
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
