"""How fast the planner replays: the Azure conversation hour of 2023, and shorter and longer ones.

    python benchmarks/plan_speed.py [--trace FILE.csv] [--json] [--parts 1/16 1/4 1]

Each part is replayed in a process of its own, on one core: Llama-3.1-8B on an H100. A part above 1
repeats the hour, one after the other. Printed are seconds of the processor, microseconds for each
token (of prompts and outputs) and for each output token, and how many steps the engine took one by
one. The time for a token must not grow with the length of the trace.
"""

import argparse
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from time import process_time

from machine import facts

from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.fit import FitSettings, fit
from looseleaf.planner.hardware import load_hardware
from looseleaf.planner.models import load_shape
from looseleaf.planner.plan import memory_plan, roofline_timing, run_plan
from looseleaf.planner.trace import Trace, read_trace

TRACE = (
    Path(__file__).resolve().parents[2]
    / "shared"
    / "traces"
    / "azure2023"
    / "AzureLLMInferenceTrace_conv.csv"
)


def part_of(trace: Trace, part: Fraction) -> Trace:
    hour = (trace.requests[-1].arrival or 0.0) + 1
    requests = [
        request._replace(arrival=(request.arrival or 0.0) + hour * i)
        for i in range(max(1, int(part)))
        for request in trace.requests
    ]
    return trace._replace(requests=tuple(requests[: int(len(trace.requests) * part)]))


def measure(path: Path, part: Fraction) -> dict[str, float]:
    trace = part_of(read_trace(path), part)
    hardware = load_hardware("h100")
    fitted = fit(
        load_shape("meta-llama/Llama-3.1-8B"),
        FitSettings(memory=hardware.usable_memory or 0, max_num_seqs=256),
    )
    settings = EngineSettings(max_num_seqs=256, max_num_batched_tokens=2048)
    times = roofline_timing(fitted, hardware).times
    start = process_time()
    plan = run_plan(trace, settings, memory_plan(fitted), times)
    seconds = process_time() - start
    summary = plan.summary
    return {
        "part": float(part),
        "requests": summary.requests,
        "output_tokens": summary.output_tokens,
        "steps": summary.steps,
        "plain_steps": plan.result.num_plain_steps,
        "seconds": seconds,
        "us_per_token": 1e6 * seconds / (summary.output_tokens + summary.prompt_tokens),
        "us_per_output_token": 1e6 * seconds / summary.output_tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument(
        "--parts", type=Fraction, nargs="+", default=[Fraction(1, 16), Fraction(1, 4), Fraction(1)]
    )
    parser.add_argument("--one", type=Fraction, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.trace, options.one)))
        return
    rows = []
    for part in options.parts:
        command = [sys.executable, __file__, "--trace", str(options.trace), "--one", str(part)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout))
    if options.json:
        print(json.dumps({"machine": facts(), "parts": rows}))
        return
    print(
        f"{'part':>8}{'requests':>10}{'output':>10}{'seconds':>9}{'us/token':>10}{'us/output':>10}"
    )
    for row in rows:
        print(
            f"{row['part']:8.4g}{row['requests']:10}{row['output_tokens']:10}{row['seconds']:9.1f}"
            f"{row['us_per_token']:10.2f}{row['us_per_output_token']:10.2f}"
        )


if __name__ == "__main__":
    main()
