"""transformers on PyTorch: the reference implementation of most models, not a serving engine."""

from collections.abc import Sequence
from pathlib import Path

from peers.processes import BENCHMARKS, ROOT, made_whole, make_venv, run_step, run_worker, size_mib
from peers.protocol import Answer, Request

FOLDER = ROOT / "transformers"
VENV = FOLDER / "venv"
LOG = FOLDER / "install.log"
HF_MODEL = FOLDER / "model"
"""The model as others read it too: float32, in the form in which transformers saves."""

REQUIREMENTS = (
    "torch==2.13.0",
    "transformers==5.24.0",
    "accelerate==1.15.0",
    "gguf==0.18.0",
)


class Transformers:
    name = "transformers"
    label = "transformers"
    version = "5.24.0"
    variants: Sequence[str] = ("fp32",)

    def install(self, model: Path) -> None:
        make_hf_model(model)

    def model(self, variant: str) -> Path:
        return HF_MODEL

    def size_mib(self) -> float:
        return size_mib(VENV)

    def run(self, request: Request, timeout_s: float) -> Answer:
        return run_worker(VENV / "bin" / "python", "transformers", request, timeout_s)


def make_hf_model(model: Path) -> Path:
    """`HF_MODEL`, made from a GGUF file if it is not there yet. Raises PeerError."""
    python = make_venv(VENV, REQUIREMENTS, LOG)
    if not HF_MODEL.exists():
        with made_whole(HF_MODEL) as folder:
            # -m takes modules of the current folder.
            command: list[str | Path] = [python, "-m", "peers.workers.hf_model", model, folder]
            run_step(command, LOG, cwd=BENCHMARKS)
    return HF_MODEL
