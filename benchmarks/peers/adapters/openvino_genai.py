"""OpenVINO GenAI: `ContinuousBatchingPipeline` with prefix caching."""

from collections.abc import Sequence
from pathlib import Path

from peers.adapters.transformers import make_hf_model
from peers.processes import ROOT, made_whole, make_venv, run_step, run_worker, size_mib
from peers.protocol import Answer, Request

FOLDER = ROOT / "openvino_genai"
VENV = FOLDER / "venv"
EXPORT_VENV = FOLDER / "export"
LOG = FOLDER / "install.log"
VERSION = "2026.4.1"

REQUIREMENTS = (f"openvino-genai=={VERSION}.0", f"openvino-tokenizers=={VERSION}.0")
EXPORT_REQUIREMENTS = (
    "torch==2.13.0",
    "optimum-intel==2.2.0",
    "transformers==5.5.4",
    "nncf==3.4.0",
    f"openvino=={VERSION}",
    f"openvino-tokenizers=={VERSION}.0",
)
# The default group of 128 does not divide this model's width of 576.
EXPORT_OPTIONS = {"int8": (), "fp32": (), "int4": ("--group-size", "64")}


class OpenVINO:
    name = "openvino_genai"
    label = "OpenVINO"
    version = VERSION
    variants: Sequence[str] = tuple(EXPORT_OPTIONS)

    def install(self, model: Path) -> None:
        make_venv(VENV, REQUIREMENTS, LOG)
        for variant in self.variants:
            if not self.model(variant).exists():
                with made_whole(self.model(variant)) as folder:
                    export(make_hf_model(model), variant, folder)

    def model(self, variant: str) -> Path:
        return FOLDER / "models" / variant

    def size_mib(self) -> float:
        return size_mib(VENV)

    def run(self, request: Request, timeout_s: float) -> Answer:
        return run_worker(VENV / "bin" / "python", "openvino_genai", request, timeout_s)


def export(source: Path, variant: str, folder: Path) -> None:
    python = make_venv(EXPORT_VENV, EXPORT_REQUIREMENTS, LOG)
    # Needed for pictures only, and does not load beside every build of torch.
    run_step([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], LOG)
    command: list[str | Path] = [EXPORT_VENV / "bin" / "optimum-cli", "export", "openvino"]
    command += ["--task", "text-generation-with-past", "--weight-format", variant]
    command += [*EXPORT_OPTIONS[variant], "--model", source, folder]
    run_step(command, LOG)
