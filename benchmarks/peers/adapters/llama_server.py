"""A running llama-server and the requests it is sent."""

import http.client
import json
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import IO, Any, Self

from peers.processes import PeerError, last_words, started
from peers.protocol import Job, Request, Spans

HOST = "127.0.0.1"
POLL_S = 0.01


class LlamaServer:
    """A server with a slot for every sequence of the request, each with room for all its tokens.

    Up while the block runs; `deadline` is when, by `perf_counter`, everything has to be done.
    Raises PeerError if it does not start.
    """

    def __init__(self, program: Path, request: Request, log: IO[bytes], deadline: float) -> None:
        self._log = log
        self._deadline = deadline
        self._port = free_port()
        slots = request.num_sequences
        # It wants multiples of 256 for each slot.
        context = slots * -(-(request.total_tokens + 1) // 256) * 256
        command: list[str | int | Path] = [program, "--model", request.model]
        command += ["--host", HOST, "--port", self._port]
        command += ["--threads", request.threads, "--threads-batch", request.threads]
        command += ["--parallel", slots, "--ctx-size", context]
        self._command = [str(word) for word in command]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        options = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        self._process = self._stack.enter_context(started(self._command, **options))
        try:
            self._wait_until_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def complete(self, job: Job, spans: Spans) -> float:
        """Send all prompts at once and wait for all answers: the seconds that took."""
        bodies = [json.dumps(self._body(prompt, job)) for prompt in job.prompts]
        errors: list[str] = []

        def ask(index: int) -> None:
            try:
                self._ask(bodies[index], index, spans, start)
            except (OSError, http.client.HTTPException, ValueError, PeerError) as error:
                errors.append(f"{type(error).__name__}: {error}")

        threads = [
            threading.Thread(target=ask, args=(index,), daemon=True)
            for index in range(len(job.prompts))
        ]
        start = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = perf_counter() - start
        if errors:
            raise PeerError(f"{errors[0]} ({len(errors)} of {len(bodies)} requests failed)")
        return wall

    def _ask(self, body: str, index: int, spans: Spans, start: float) -> None:
        with closing(self._post(body)) as response:
            while line := response.readline():
                now = perf_counter() - start
                self._remaining()
                if line.startswith(b"data: "):
                    event = json.loads(line[len(b"data: ") :])
                    spans.saw((index, event["index"]), event["tokens_predicted"], now)
                elif line.startswith(b"error: "):
                    raise PeerError(line.decode(errors="replace").strip())

    def _post(self, body: str) -> http.client.HTTPResponse:
        """Send a request. On a busy machine the server may drop a new connection: then again."""
        for last in (False, False, True):
            connection = http.client.HTTPConnection(HOST, self._port, timeout=self._remaining())
            try:
                headers = {"Content-Type": "application/json", "Connection": "close"}
                connection.request("POST", "/completion", body, headers)
                response = connection.getresponse()
            except ConnectionError:
                connection.close()
                if last:
                    raise
            else:
                break
        if response.status != 200:
            raise PeerError(f"status {response.status}: {response.read(500).decode()}")
        return response

    def _body(self, prompt: list[int], job: Job) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "n_predict": job.max_tokens,
            "n_cmpl": job.num_samples,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
            "stream": True,
        }

    def _remaining(self) -> float:
        """Seconds until the deadline. Raises PeerError after it."""
        remaining = self._deadline - perf_counter()
        if remaining <= 0:
            raise PeerError("out of time")
        return remaining

    def _wait_until_ready(self) -> None:
        while perf_counter() < self._deadline:
            if self._process.poll() is not None:
                raise PeerError(f"status {self._process.returncode}: {last_words(self._log)}")
            connection = http.client.HTTPConnection(HOST, self._port, timeout=5)
            with closing(connection), suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(POLL_S)
        raise PeerError("it did not start in time")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
