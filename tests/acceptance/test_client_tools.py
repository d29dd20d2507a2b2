"""Load tools and lm-eval, unmodified, with the real model, where they are installed.

They bring PyTorch or other large packages, so nothing installs them by itself:
`benchmarks/clients.py --install guidellm`, `benchmarks/peers.py --install vllm` and
`benchmarks/lm_eval.py` do.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import Served

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = {
    "guidellm": ROOT / "build" / "clients" / "guidellm" / "bin" / "python",
    "vllm": ROOT / "build" / "peers" / "vllm" / "venv" / "bin" / "python",
}
LM_EVAL = ROOT / "build" / "lm-eval" / "bin" / "python"
REQUESTS = 12
SECONDS = 280

pytestmark = [pytest.mark.model, pytest.mark.timeout(SECONDS + 20)]


def said(script: str, *arguments: str) -> Any:
    """What a benchmark prints as its JSON."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("tool", PYTHONS)
def test_load(model_server: Served, tool: str) -> None:
    if not PYTHONS[tool].exists():
        pytest.skip(f"{tool} is not installed")
    asked = ("--url", model_server.url, "--requests", str(REQUESTS), "--streams", "4")
    found = said("clients.py", tool, *asked)[tool]
    assert (found["completed"], found["failed"]) == (REQUESTS, 0)
    assert found["output_tokens"] == REQUESTS * 16
    assert found["prompt_tokens"] >= REQUESTS * 64
    assert 0 < found["median_inter_token_ms"] < 10_000
    assert 0 < found["median_ttft_ms"] < 100_000
    assert found["output_tokens_per_s"] > 1


def test_lm_eval() -> None:
    if not LM_EVAL.exists():
        pytest.skip("lm-eval is not installed")
    found = said("lm_eval.py", "--items", "3")
    assert found["items_with_equal_log_likelihoods"] == found["items"] == 3
