"""`looseleaf serve`: its options, and a real process from start to stop."""

import configparser
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_gguf import EXECUTOR

from looseleaf import LLM, SamplingParams
from looseleaf.engine.build import Stack
from looseleaf.planner.recording import read_recording
from looseleaf.server.limits import Cors, Limits
from looseleaf.server.observing import Observing
from looseleaf.server.replies import ReplySettings
from looseleaf.studio.settings import StudioSettings

pytestmark = pytest.mark.timeout(90)

SECONDS = 30


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Stack, dict[str, Any]]]]:
    """What would have been served, instead of serving it; `address` is what was bound."""
    calls: list[tuple[Stack, dict[str, Any]]] = []

    def run_server(stack: Stack, *, sockets: list[socket.socket], **how: Any) -> None:
        (listener,) = sockets
        calls.append((stack, how | {"address": bound[listener.fileno()]}))

    bound: dict[int, tuple[str, int]] = {}

    def bind(host: str, port: int) -> socket.socket:
        listener = socket.socket()
        bound[listener.fileno()] = (host, port)
        return listener

    monkeypatch.setattr("looseleaf.commands.serve.run_server", run_server)
    monkeypatch.setattr("looseleaf.commands.listening.bind", bind)
    before = signal.getsignal(signal.SIGTERM)
    yield calls
    signal.signal(signal.SIGTERM, before)
    for stack, _ in calls:
        stack.engine.close()


def test_defaults(call, served, tiny_model: Path) -> None:
    assert call("serve", str(tiny_model)).status == 0
    ((stack, how),) = served
    assert len(how.pop("keys")) == 0
    assert (how.pop("limits"), how.pop("cors")) == (Limits(), None)
    assert how == {
        "model_names": [str(tiny_model)],
        "host": "127.0.0.1",
        "port": 8000,
        "address": ("127.0.0.1", 8000),
        "log_level": "info",
        "access_log": False,
        "max_body_bytes": 16 * 2**20,
        "shutdown_seconds": 30,
        "replies": ReplySettings(),
        "observing": Observing(),
        "root_path": "",
        "exit_on_engine_failure": True,
        "watchers": [],
        "tracing": None,
        "tls": None,
        "refresh_tls": None,
        "studio": StudioSettings(enabled=True, show_text=False, record=None),
    }
    scheduler = stack.engine.scheduler
    assert (stack.memory.block_size, stack.memory.max_model_len) == (16, 512)
    assert scheduler.config.max_num_seqs == 128
    assert scheduler.config.max_num_batched_tokens == 512
    assert scheduler.allocator.prefix_caching


def test_every_option_arrives(call, served, tiny_model: Path) -> None:
    outcome = call(
        *("serve", str(tiny_model), "--host", "::1", "--port", "65535", "--log-level", "error"),
        *("--served-model-name", "one", "two", "--block-size", "8", "--max-num-seqs", "3"),
        *("--max-num-batched-tokens", "77", "--max-model-len", "100"),
        *("--kv-cache-memory", "256KiB", "--no-enable-prefix-caching"),
        *("--scheduling-policy", "priority", "--long-prefill-token-threshold", "5"),
        *("--enable-log-requests", "--max-body-bytes", "1MiB", "--shutdown-timeout", "7"),
        *("--kv-cache-dtype", "f32", "--activations", "f32", "--threads", "3"),
        *("--no-enable-auto-tool-choice", "--tool-call-parser", "mistral"),
        *("--reasoning-parser", "qwen3", "--timings"),
        *("--api-key", "sk-x", "--isolate-cache-per-key", "--max-num-queued-reqs", "5"),
        *("--max-queued-tokens", "6", "--request-read-timeout", "7.5", "--request-timeout", "8.5"),
        *("--allowed-origins", "https://a.example", "https://b.example"),
        *("--allowed-methods", "GET", "--allow-credentials"),
        *("--root-path", "/llm", "--no-exit-on-engine-failure", "--legacy-metric-names"),
        *("--kv-cache-metrics", "--kv-cache-metrics-sample", "0.5", "--log-format", "json"),
        *("--max-connections", "9", "--timeout-keep-alive", "3", "--request-header-timeout", "4.5"),
        *("--h11-max-incomplete-event-size", "8KiB"),
        *("--studio-show-text", "--studio-record", "run.ndjson"),
    )
    assert (outcome.status, outcome.out) == (0, "")
    ((stack, how),) = served
    assert how.pop("keys").tenant(b"sk-x").label == "key-1"
    assert how.pop("limits") == Limits(
        max_queued_requests=5,
        max_queued_tokens=6,
        read_timeout=7.5,
        request_timeout=8.5,
        isolate_cache=True,
        max_connections=9,
        keep_alive=3,
        header_timeout=4.5,
        max_header_bytes=8192,
    )
    origins = ("https://a.example", "https://b.example")
    assert how.pop("cors") == Cors(origins=origins, methods=("GET",), credentials=True)
    assert how == {
        "model_names": ["one", "two"],
        "host": "::1",
        "port": 65535,
        "address": ("::1", 65535),
        "log_level": "error",
        "access_log": True,
        "max_body_bytes": 2**20,
        "shutdown_seconds": 7,
        "replies": ReplySettings(False, "mistral", "qwen3", True),
        "observing": Observing(legacy_metric_names=True, kv_sample=0.5),
        "root_path": "/llm",
        "exit_on_engine_failure": False,
        "watchers": [],
        "tracing": None,
        "tls": None,
        "refresh_tls": None,
        "studio": StudioSettings(show_text=True, record=Path("run.ndjson")),
    }
    config = stack.engine.scheduler.config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (3, 77)
    assert (config.max_model_len, config.policy) == (100, "priority")
    assert config.long_prefill_token_threshold == 5
    # In float32 a token takes 256 bytes.
    assert (stack.memory.num_blocks, stack.memory.block_size) == (256 * 1024 // (8 * 256), 8)
    settings = stack.settings
    assert (settings.executor, settings.kv_cache_dtype) == (EXECUTOR, "f32")
    assert settings.activations == "f32"
    assert settings.threads == 3 or EXECUTOR == "reference"
    assert not stack.engine.scheduler.allocator.prefix_caching


def test_a_share_of_blocks_that_is_none(call) -> None:
    for share in ("0", "1.5", "-1", "nan"):
        call("serve", f"--kv-cache-metrics-sample={share}").check_refused("kv_cache_metrics_sample")


def test_what_is_served_can_be_recorded(call, served, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    model = ("serve", str(tiny_model), "--kv-cache-memory", "1MiB")
    assert call(*model, "--record", str(path)).status == 0
    ((stack, _),) = served
    LLM(stack=stack).generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
    stack.engine.close()
    recording = read_recording(path)
    assert (len(recording.asked), len(recording.steps)) == (1, 4)
    assert recording.memory == stack.memory
    refused = call(*model, "--record", str(path), "--swap-space", "1MiB")
    refused.check_refused("swap_space", "cannot be replayed")


def test_the_model_may_be_an_option(call, served, tiny_model: Path) -> None:
    assert call("serve", "--model", str(tiny_model)).status == 0
    assert served[0][1]["model_names"] == [str(tiny_model)]
    outcome = call("serve", str(tiny_model), "--model", str(tiny_model))
    outcome.check_refused("given twice", "--model")


def test_the_key_may_come_from_the_environment(
    call, served, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "from-outside")
    assert call("serve", str(tiny_model)).status == 0
    assert call("serve", str(tiny_model), "--api-key", "one", "--api-key", "two").status == 0
    first, second = (how["keys"] for _, how in served)
    assert first.tenant(b"from-outside").label == "key-1"
    assert second.tenant(b"from-outside") is None
    assert [second.tenant(key).label for key in (b"one", b"two")] == ["key-1", "key-2"]


def test_pins_for_all_do_not_go_with_caches_for_each(call, tiny_model: Path) -> None:
    words = ("--pin", "x.txt", "--isolate-cache-per-key", "--api-key", "sk-x")
    call("serve", str(tiny_model), *words).check_refused("--pin", "exclude each other")


@pytest.mark.parametrize("port", ["0", "1", "8080", "65535"])
def test_ports(call, served, tiny_model: Path, port: str) -> None:
    assert call("serve", str(tiny_model), "--port", port).status == 0
    assert served[0][1]["port"] == int(port)


@pytest.fixture
def server(start: Any, tiny_model: Path, tmp_path: Path) -> tuple[Any, str, Path]:
    """A process that serves: itself, its URL, its log."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = start("serve", str(tiny_model), "--port", "0", stderr=file)
    return process, _url(process, log), log


def _url(process: Any, log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while True:
        found = re.search(
            r"serving \S+ at (http://127\.0\.0\.1:\d+)/v1; KV cache: ", log.read_text()
        )
        if found is not None:
            return found[1]
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_server_that_is_serving(server, number: int, status: int) -> None:
    process, url, log = server
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        assert client.get("/health").status_code == 200
        body = {"model": client.get("/v1/models").json()["data"][0]["id"], "prompt": "a"}
        answer = client.post("/v1/completions", json=body | {"max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
    process.send_signal(number)
    assert process.wait(SECONDS) == status
    assert "Traceback" not in log.read_text()
    assert process.stdout.read() == b""
    # One line says how many blocks, how many tokens and how many requests.
    (line,) = [line for line in log.read_text().splitlines() if " serving " in line]
    assert re.search(
        r"= 4096 blocks of 16 tokens = 65536 tokens; fits 128\.0 requests of 512 tokens "
        r"\(max_model_len\) or 128 of 500 tokens \(typical\)",
        line,
    )


def test_a_log_of_json_lines(start, tiny_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("--port", "0", "--log-format", "json", "--enable-log-requests", "--api-key", "sk-x")
    with log.open("wb") as file:
        process = start("serve", str(tiny_model), *words, stderr=file)
    headers = {"authorization": "Bearer sk-x", "x-request-id": "mine"}
    with httpx.Client(base_url=_url(process, log), timeout=SECONDS, headers=headers) as client:
        body = {"model": str(tiny_model), "prompt": "a secret", "max_tokens": 3, "stream": True}
        assert client.post("/v1/completions", json=body).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (told,) = [line for line in lines if "status" in line]
    assert (told["status"], told["request_id"], told["key"]) == (200, "mine", "key-1")
    assert told["prompt_tokens"] > 0
    assert "secret" not in text
    assert "sk-x" not in text


def test_an_address_that_cannot_be_had_is_said_before_a_model_is_loaded(
    call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.commands.serve.build", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = call("serve", "anything", "--port", str(port))
    outcome.check_refused(f"127.0.0.1:{port}", "address already in use", "another port")
    # From the block that is set apart for documentation.
    outcome = call("serve", "anything", "--host", "192.0.2.1", "--port", "0")
    outcome.check_refused("192.0.2.1", "an address of this machine")


def test_a_real_process_says_that_its_address_is_taken(spawn, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = spawn("serve", str(tiny_model), "--port", str(taken.getsockname()[1]))
    outcome.check_refused("address already in use")


def test_options_from_a_file(call, served, tiny_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"model: {tiny_model}\nport: 8123\nmax_num_seqs: 7\nblock-size: 8\n"
        "served-model-name: [one, two]\nenable-prefix-caching: false\nenable-log-requests: true\n"
        "swap-space:\n"
    )
    # What the command line says wins, before and after.
    assert call("serve", "--port", "8200", "--config", str(config), "--block-size=4").status == 0
    ((stack, how),) = served
    assert (how["port"], how["model_names"], how["access_log"]) == (8200, ["one", "two"], True)
    assert stack.engine.scheduler.config.max_num_seqs == 7
    assert stack.memory.block_size == 4
    assert not stack.engine.scheduler.allocator.prefix_caching


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 8000", "no option 'prot'; did you mean port?"),
        ("port: [", "not valid YAML"),
        ("- port", "must hold options"),
        ("enable-log-requests: 3", "must be true or false"),
        ("port: {a: 1}", "must be a text or a number"),
        ("port: 99999999", "is not a port"),
        ("port: [8001, 8002]", "port is a list of 2, but it takes one value"),
    ],
)
def test_a_file_that_makes_no_sense(call, tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(text)
    outcome = call("serve", "--config", str(config))
    assert outcome.status == 2
    assert told in outcome.err


def test_a_command_line_written_for_vllm(call, served, tiny_model: Path) -> None:
    words = ("--tensor-parallel-size", "1", "--trust-remote-code", "--dtype", "auto")
    assert call("serve", str(tiny_model), *words, "--enable-chunked-prefill").status == 0
    assert len(served) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tensor-parallel-size", "2"), "only 1 is supported"),
        (("--dtype", "bfloat16"), "only auto is supported"),
        (("--gpu-memory-utilization", "0.9"), "--kv-cache-memory"),
        (("--quantization", "awq"), "the types of the model file"),
        (("--enable-ssl-refresh",), "no use without --ssl-certfile"),
        (("--h11-max-header-count", "9"), "--max-header-bytes"),
    ],
)
def test_what_vllm_has_and_we_do_not(call, words: tuple[str, ...], told: str) -> None:
    outcome = call("serve", *words)
    assert outcome.status == 2
    assert told in outcome.err


DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_example_of_a_file_is_understood(call, served, tiny_model: Path) -> None:
    options = ("--config", str(DEPLOY / "serve.yaml"), "--model", str(tiny_model))
    assert call("serve", *options).status == 0
    ((stack, how),) = served
    assert how["limits"].max_queued_requests == 256
    assert stack.engine.scheduler.config.policy == "fair"


def test_the_unit_starts_a_server_that_reads_the_file(call) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "looseleaf.service")
    program, *words = unit["Service"]["ExecStart"].split()
    assert program.endswith("/looseleaf")
    assert words[:2] == ["serve", "--config"]
    default = 30
    assert int(unit["Service"]["TimeoutStopSec"]) > default
