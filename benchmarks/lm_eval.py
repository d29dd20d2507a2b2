"""EleutherAI's lm-eval against our server: log-likelihoods with prefix caching on and off.

    python benchmarks/lm_eval.py [--json] [--items N]

Installs lm-eval at a pinned version into build/lm-eval (about 900 MB, once), makes a local task of
few-shot sums with four choices each, serves SmolLM2-135M, and runs `local-completions` on token-id
prompts (`echo`, `logprobs`, `max_tokens` 0) twice: prefix caching on, then off. Every choice's
log-likelihood must be the same to the last digit; ends with status 1 if one is not.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from machine import facts
from tokenizer_folder import write_tokenizer

MODEL = "smollm2-135m"
ENVIRONMENT = Path(__file__).resolve().parents[1] / "build" / "lm-eval"
PACKAGES = (
    *("lm_eval==0.4.13", "transformers==5.24.0", "aiohttp>=3", "requests>=2", "tenacity>=9"),
    "tiktoken>=0.9",
)
TASK = """\
task: sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
target_delimiter: " "
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def install() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def write_task(folder: Path, num_items: int) -> None:
    rng = random.Random(1)
    pairs = [(rng.randrange(1, 9), rng.randrange(1, 9)) for _ in range(8 + num_items)]
    shots = "".join(f"Question: What is {a} plus {b}?\nAnswer: {a + b}\n\n" for a, b in pairs[:8])
    items = []
    for a, b in pairs[8:]:
        choices = [a + b, a + b + 1, abs(a - b) + 20, a * b + 30]
        rng.shuffle(choices)
        items.append(
            {
                "question": f"{shots}Question: What is {a} plus {b}?\nAnswer:",
                "choices": [str(choice) for choice in choices],
                "label": choices.index(a + b),
            }
        )
    data = folder / "sums.jsonl"
    data.write_text("\n".join(map(json.dumps, items)))
    (folder / "sums.yaml").write_text(TASK.format(data=data))


def run(python: Path, folder: Path, caching: bool) -> dict[str, Any]:
    """Accuracy, and every choice's log-likelihood by item."""
    flag = "--enable-prefix-caching" if caching else "--no-enable-prefix-caching"
    with (folder / "server.log").open("w+") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "looseleaf", "serve", MODEL, "--port", "0", flag],
            stdout=log,
            stderr=log,
        )
        try:
            url = _url(server, folder / "server.log")
            out = folder / f"out-{caching}"
            arguments = {
                "model": MODEL,
                "base_url": f"{url}/completions",
                "num_concurrent": 4,
                "tokenizer_backend": "huggingface",
                "tokenizer": folder,
                "tokenized_requests": True,
                "max_length": 2048,
            }
            subprocess.run(
                [
                    *(python, "-m", "lm_eval", "--model", "local-completions"),
                    *("--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())),
                    *("--tasks", "sums", "--include_path", folder),
                    *("--output_path", out, "--log_samples"),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
                timeout=900,
            )
        finally:
            server.terminate()
            server.wait(30)
    (results,) = out.rglob("results*.json")
    (samples,) = out.rglob("samples*.jsonl")
    rows = map(json.loads, samples.read_text().splitlines())
    return {
        "accuracy": json.loads(results.read_text())["results"]["sums"]["acc,none"],
        "items": {str(row["doc_id"]): row["filtered_resps"] for row in rows},
    }


def _url(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where it serves, as its log says once it does."""
    for _ in range(600):
        found = re.search(r"at (http://\S+/v1)", log.read_text())
        if found is not None:
            return found[1]
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise SystemExit(f"the server ended:\n{log.read_text()}")
    raise SystemExit("the server does not serve after a minute")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    python = install()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_task(folder, options.items)
        write_tokenizer(MODEL, folder)
        on, off = (run(python, folder, caching) for caching in (True, False))
    same = sum(on["items"][key] == off["items"][key] for key in on["items"])
    result = {
        "items": len(on["items"]),
        "accuracy": {"caching": on["accuracy"], "no_caching": off["accuracy"]},
        "items_with_equal_log_likelihoods": same,
        "machine": facts(),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['items']} items of 4 choices: accuracy {on['accuracy']:.2f} with prefix "
            f"caching, {off['accuracy']:.2f} without; log-likelihoods equal to the last digit in "
            f"{same}"
        )
    return 0 if same == len(on["items"]) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
