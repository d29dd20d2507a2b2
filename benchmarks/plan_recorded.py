"""The planner against recordings of vLLM on GPUs that are not here.

    python benchmarks/plan_recorded.py [--json] [--html FOLDER] [--traces FOLDER]

Four recordings, of 300 requests each. Nothing is fitted to any of them, and nothing is tuned from
one to the next: what is set comes from the engine arguments that were recorded, and each run is one
`looseleaf plan`, which is printed where its page is kept (`--html`). Step times are from measured
kernels where there are some for the model and the device, and else from a roofline with the
efficiencies that are its defaults. Printed are the errors, also where they miss what is asked for:
of the makespan, of times to first token and for an output token, and the mean absolute difference
of the curves at the recorded times.

How many blocks there were is recorded for one run alone; elsewhere it is what fits. Two replicas
that divide their experts are planned as one engine on two devices, with the seats and the tokens of
both. What prompts share is known of the trace of the first two runs alone.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from machine import facts

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces" / "llmservingsim"
ASKED = {"makespan": 0.03, "TTFT, median": 0.08, "TPOT, mean": 0.03}
"""How far off the planner may be, as a share."""

SECONDS = 600


class Recording(NamedTuple):
    """`profile` is what the kernels' files are named by, None for a roofline; `trace` is a file
    beside the folder, None for the recorded requests themselves."""

    folder: str
    model: str
    hardware: str
    profile: str | None = None
    trace: str | None = None


LLAMA, QWEN, MOE = "Llama-3.1-8B", "Qwen3-32B", "Qwen3-30B-A3B-Instruct-2507"
SHAREGPT = "sharegpt-300.jsonl"
RECORDINGS = (
    Recording(f"RTX4090_{LLAMA}", LLAMA, "rtx-4090", "RTX4090_llama31-8b_tp1", SHAREGPT),
    Recording(f"RTXPRO6000_{LLAMA}", LLAMA, "rtx-pro-6000", "RTXPRO6000_llama31-8b_tp1", SHAREGPT),
    Recording(f"RTXPRO6000_{QWEN}", QWEN, "rtx-pro-6000"),
    Recording(f"RTXPRO6000_{MOE}", MOE, "rtx-pro-6000"),
)


def command(recording: Recording, traces: Path) -> list[str]:
    folder = traces / recording.folder
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    asked = meta["engine_kwargs"]
    replicas = asked["data_parallel_size"]
    tokens = replicas * asked["max_num_batched_tokens"]
    trace = folder / "requests.jsonl" if recording.trace is None else traces / recording.trace
    # vLLM leaves no headroom, and has no share of a step for long prompts.
    options = {
        "--model": recording.model,
        "--hardware": recording.hardware,
        "--tensor-parallel-size": replicas * asked["tensor_parallel_size"],
        "--max-num-seqs": replicas * asked["max_num_seqs"],
        "--max-num-batched-tokens": tokens,
        "--long-prefill-token-threshold": tokens,
        "--admission-headroom": 0,
        "--against": folder / "timeseries.csv",
        "--against-requests": folder / "requests.jsonl",
        "--what-if": "none",
        "--compare-allocators": "none",
    }
    if asked["max_model_len"] is not None:
        options["--max-model-len"] = asked["max_model_len"]
    if "kv_cache" in meta:
        options["--num-blocks"] = meta["kv_cache"]["num_gpu_blocks"]
    if recording.profile is not None:
        options["--kernel-profile"] = traces / "profile" / recording.profile
    given = [str(part) for option in options.items() for part in option]
    return ["plan", str(trace), *given]


def planned(recording: Recording, traces: Path, html: Path | None) -> dict[str, Any]:
    arguments = command(recording, traces)
    if html is not None:
        html.mkdir(parents=True, exist_ok=True)
        arguments += ["--html", str(html / f"{recording.folder}.html")]
        print("looseleaf", shlex.join(arguments), file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", "looseleaf", *arguments, "--json"],
        check=True,
        timeout=SECONDS,
        stdout=subprocess.PIPE,
        text=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return {
        "run": recording.folder,
        "step_times": report["cost_model"]["name"],
        "num_blocks": report["kv_cache"]["num_blocks"],
        **report["against"],
    }


def show(run: dict[str, Any]) -> None:
    print(f"\n{run['run']}: {run['step_times']}, {run['num_blocks']} blocks")
    for one in run["errors"]:
        asked = ASKED.get(one["name"])
        verdict = ""
        if asked is not None:
            verdict = "within" if abs(one["relative"]) <= asked else "misses"
            verdict += f" {asked:.0%}"
        print(
            f"  {one['name']:18}{one['ours']:11.4f} s{one['theirs']:11.4f} s"
            f"{one['relative']:+9.1%}  {verdict}"
        )
    for one in run["curves"]:
        share = one["difference"] / one["theirs_peak"] if one["theirs_peak"] else 0.0
        print(
            f"  {one['name']:18}{one['ours_peak']:11.4g}  {one['theirs_peak']:11.4g}  at most; "
            f"apart by {one['difference']:.3g} on average ({share:.1%} of the peak)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--html", type=Path, metavar="FOLDER", help="keep the page of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    runs = [planned(one, options.traces, options.html) for one in RECORDINGS]
    if options.json:
        print(json.dumps({"machine": facts(), "runs": runs}))
        return
    print(f"{'':20}{'replayed':>13}{'recorded':>13}{'off by':>9}")
    for run in runs:
        show(run)


if __name__ == "__main__":
    main()
