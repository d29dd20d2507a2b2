"""What `looseleaf plan` makes besides its summary: a page, a Chrome trace, comparisons."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.options import at_least
from looseleaf.commands.plan_setup import Deployment
from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.planner.amounts import change, number, seconds, share
from looseleaf.planner.plan import Plan
from looseleaf.planner.replay import Replay
from looseleaf.planner.report.allocators import compare_allocators
from looseleaf.planner.report.chrome_trace import write_chrome_trace
from looseleaf.planner.report.page import page
from looseleaf.planner.report.phases import PhaseWatch
from looseleaf.planner.report.recorded import Curves, compare, read_curves, read_measured
from looseleaf.planner.report.what_if import changes, first_requests, what_if
from looseleaf.planner.trace_types import Trace

WHAT_IF_REQUESTS = 300
ALLOCATOR_REQUESTS = 100
TRACED_REQUESTS = 500


def add_outputs(parser: argparse.ArgumentParser) -> None:
    reports = parser.add_argument_group("reports")
    reports.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page that stands alone, with charts"
    )
    reports.add_argument(
        "--what-if",
        type=_how_many,
        metavar="N|none",
        help="replay single changes (block size, prefix caching, memory, sequences) over the first "
        f"N requests, about eight replays of them (default: {WHAT_IF_REQUESTS} for --html, else "
        "none)",
    )
    reports.add_argument(
        "--compare-allocators",
        type=_how_many,
        metavar="N|none",
        help="replay the first N requests with the old ways to reserve memory too, which takes "
        f"some times as long for each (default: {ALLOCATOR_REQUESTS} for --html, else none)",
    )
    reports.add_argument(
        "--against",
        type=Path,
        metavar="FILE.csv",
        help="a recording of a real server with this trace, to compare with and to draw over the "
        "replay: columns t (seconds), running, waiting and kv_cache_pct (or kv_cache_usage_perc)",
    )
    reports.add_argument(
        "--against-requests",
        type=Path,
        metavar="FILE.jsonl",
        help="its requests: queued_ts, first_token_ts, last_token_ts (seconds) and output_toks",
    )
    reports.add_argument(
        "--chrome-trace",
        type=Path,
        metavar="FILE",
        help="write steps and requests for ui.perfetto.dev or chrome://tracing",
    )
    reports.add_argument(
        "--chrome-trace-requests",
        type=at_least(1),
        default=TRACED_REQUESTS,
        metavar="N",
        help="only the first N requests, and steps until they have ended (default: %(default)s)",
    )


_OF_ONE_REPLAY = (
    *("html", "what_if", "compare_allocators", "against", "chrome_trace", "studio_record"),
)
"""Options that describe one replay of one engine."""


def _how_many(text: str) -> int:
    return 0 if text == "none" else at_least(1)(text)


class Outputs:
    """Of one plan, as the options ask for it. Raises ConfigError for what cannot be written or
    read, before anything is replayed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        for path in (options.html, options.chrome_trace):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise ConfigError(f"{path} cannot be written: pass a file in a folder that exists")
        _check_apart(options)
        _check_one_engine(options)
        if options.against_requests is not None and options.against is None:
            raise ConfigError("--against-requests goes with --against: pass both")
        self._recorded: Curves | None = None
        if options.against is not None:
            self._recorded = read_curves(options.against)
        self._measured = None
        if options.against_requests is not None:
            self._measured = read_measured(options.against_requests)
        self._watch: PhaseWatch | None = None

    def on_replay(self, replay: Replay) -> None:
        if self._options.chrome_trace is not None:
            self._watch = PhaseWatch(replay)

    def add_to(
        self, report: dict[str, Any], deployed: Deployment, trace: Trace, plan: Plan
    ) -> None:
        """What was asked for besides the plan itself."""
        options, times = self._options, deployed.timing.times
        report["fits"] = requests_that_fit(trace, plan.memory)
        if self._recorded is not None:
            against = compare(plan, options.against.name, self._recorded, self._measured)
            report["against"] = against.as_json()
        wanted = _or_default(options.what_if, WHAT_IF_REQUESTS if options.html else 0)
        longest = options.max_model_len or deployed.fitted.shape.max_model_len
        if wanted:
            sample = first_requests(trace, wanted)
            planned = changes(plan.settings, plan.memory, longest)
            with percents("what if", len(planned) * len(sample.requests)) as on_progress:
                cases = what_if(
                    sample,
                    planned,
                    times,
                    on_progress,
                    swap_bandwidth=deployed.swap_bandwidth,
                    disk_speed=deployed.disk_speed,
                )
            report["what_if"] = _part(sample, trace, cases)
        wanted = _or_default(options.compare_allocators, ALLOCATOR_REQUESTS if options.html else 0)
        if wanted:
            sample = first_requests(trace, wanted)
            with percents("allocators", 4 * len(sample.requests)) as on_progress:
                compared = compare_allocators(
                    sample, plan.settings, plan.memory, times, on_progress
                )
            report["allocators"] = _part(sample, trace, compared)

    def write(self, report: dict[str, Any], plan: Plan) -> Iterator[str]:
        """Yields what was written, in words."""
        options = self._options
        if options.html is not None:
            try:
                options.html.write_text(page(report, plan, self._recorded), encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{options.html} cannot be written: {error.strerror}") from None
            yield f"wrote {options.html}"
        if self._watch is not None:
            num = write_chrome_trace(
                options.chrome_trace, plan, self._watch, options.chrome_trace_requests
            )
            yield f"wrote {options.chrome_trace}: {num} events, for ui.perfetto.dev"


def _check_apart(options: argparse.Namespace) -> None:
    """One file that is written over another, or over what is read, is lost."""
    found: dict[Path, str] = {}
    for name in ("trace", "against", "against_requests", "html", "chrome_trace", "studio_record"):
        path = getattr(options, name)
        if path is None:
            continue
        shown = "TRACE" if name == "trace" else "--" + name.replace("_", "-")
        other = found.setdefault(path.resolve(), shown)
        if other != shown and name in ("html", "chrome_trace", "studio_record"):
            raise ConfigError(f"{other} and {shown} are one file, {path}: give each its own")


def _check_one_engine(options: argparse.Namespace) -> None:
    asked = ["--" + name.replace("_", "-") for name in _OF_ONE_REPLAY if getattr(options, name)]
    for other in ("sweep", "search"):
        if asked and getattr(options, other):
            raise ConfigError(f"{asked[0]} is about one replay: leave it out, or --{other}")
    if asked and options.replicas > 1:
        raise ConfigError(f"{asked[0]} is about one engine: leave it out, or --replicas")


def _part(sample: Trace, trace: Trace, cases: list[Any]) -> dict[str, Any]:
    return {
        "requests": len(sample.requests),
        "of": len(trace.requests),
        "cases": [case.as_json() for case in cases],
    }


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


@contextmanager
def percents(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that is drawn once for each percent: it is told of every request."""
    with progress(label, 100) as advance:
        drawn = 0

        def on_progress(num_done: int) -> None:
            nonlocal drawn
            while drawn < 100 * num_done // max(1, total) and drawn < 100:
                drawn += 1
                advance()

        yield on_progress


def requests_that_fit(trace: Trace, memory: MemoryPlan) -> dict[str, int]:
    """How many requests of the trace's lengths the pool holds at once, each at its full length and
    none sharing anything with another. Those that are refused take no room."""
    longest = memory.max_model_len
    lengths = sorted(
        min(longest, request.num_prompt_tokens + request.num_output_tokens)
        for request in trace.requests
        if request.num_prompt_tokens < longest
    )
    mean = round(sum(lengths) / max(1, len(lengths)))
    p95 = lengths[round(0.95 * (len(lengths) - 1))] if lengths else 0

    def fit(num_tokens: int) -> int:
        return memory.num_blocks // max(1, blocks_for(num_tokens, memory.block_size))

    return {"mean_tokens": mean, "at_mean": fit(mean), "p95_tokens": p95, "at_p95": fit(p95)}


def outputs_text(report: dict[str, Any]) -> list[str]:
    """The comparisons that were asked for, in lines for a terminal."""
    lines: list[str] = []
    if "against" in report:
        lines += _against_text(report["against"])
    if "what_if" in report:
        lines += _what_if_text(report["what_if"])
    if "allocators" in report:
        lines += _allocators_text(report["allocators"])
    return lines


def _against_text(against: dict[str, Any]) -> list[str]:
    lines = ["", f"{'against ' + against['file']:26}{'replayed':>12}{'recorded':>12}{'off by':>9}"]
    for one in against["errors"]:
        ours, theirs = one["ours"], one["theirs"]
        off = change(ours, theirs)
        lines.append(f"{one['name']:26}{seconds(ours):>12}{seconds(theirs):>12}{off:>9}")
    for one in against["curves"]:
        text = share if "KV" in one["name"] else number
        lines.append(
            f"{one['name'] + ', peak':26}{text(one['ours_peak']):>12}{text(one['theirs_peak']):>12}"
            f"   {text(one['difference'])} on average at the recorded times"
        )
    return lines


def _what_if_text(part: dict[str, Any]) -> list[str]:
    title = f"what if ({part['requests']} of {part['of']} requests)"
    names = ("tokens/s", "TTFT P50", "TTFT P95", "TPOT P50", "hit rate", "preempted")
    lines = ["", f"{title:34}" + "".join(f"{name:>11}" for name in names)]
    for case in part["cases"]:
        s = case["summary"]
        ttft, tpot = s["ttft"] or {}, s["tpot"] or {}
        cells = (
            number(s["output_tokens_per_second"]),
            seconds(ttft.get("p50")),
            seconds(ttft.get("p95")),
            seconds(tpot.get("p50")),
            share(s["hit_rate"]) if s["prefix_caching"] else "off",
            number(s["preemptions"]),
        )
        lines.append(f"{case['change']:34}" + "".join(f"{cell:>11}" for cell in cells))
    return lines


def _allocators_text(part: dict[str, Any]) -> list[str]:
    title = f"allocator ({part['requests']} of {part['of']} requests)"
    names = ("tokens", "reserved", "internal", "external", "running", "tokens/s")
    lines = ["", f"{title:34}" + "".join(f"{name:>11}" for name in names)]
    for case in part["cases"]:
        split = case["split"] or dict.fromkeys(("stored", "reserved", "internal", "external"))
        cells = (
            *map(share, split.values()),
            number(case["running_mean"]),
            number(case["output_tokens_per_second"]),
        )
        lines.append(f"{case['allocator']:34}" + "".join(f"{cell:>11}" for cell in cells))
    return lines
