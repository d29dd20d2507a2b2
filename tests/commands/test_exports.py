"""`looseleaf serve`: what it sends to others, as a real process with a real model."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml
import zmq

pytestmark = pytest.mark.timeout(90)

SECONDS = 30


def url_of(process: Any, log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while True:
        found = re.search(r" at (http://127\.0\.0\.1:\d+)/v1; KV cache: ", log.read_text())
        if found is not None:
            return found[1]
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def test_a_process_publishes_its_kv_events(start: Any, tiny_model: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    config = tmp_path / "serve.yaml"
    settings = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    config.write_text(yaml.safe_dump({"port": 0, "kv-events-config": settings}))
    log = tmp_path / "log"
    with zmq.Context() as context, context.socket(zmq.SUB) as router, log.open("wb") as file:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt_string(zmq.SUBSCRIBE, "")
        router.connect(endpoint)
        process = start("serve", str(tiny_model), "--config", str(config), stderr=file)
        url = url_of(process, log)
        deadline = time.monotonic() + SECONDS
        while not router.poll(50):
            assert time.monotonic() < deadline, log.read_text()
            prompt = f"{time.monotonic()}, said the clock, and it went on"
            body = {"model": str(tiny_model), "prompt": prompt, "max_tokens": 1}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        topic, number, payload = router.recv_multipart()
        assert (topic, len(number)) == (b"", 8)
        _, (event, *_), rank = msgspec.msgpack.decode(payload)
        assert (event["type"], event["block_size"], rank) == ("BlockStored", 16, 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert f"KV events: at {endpoint}" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--kv-events-config", "{"), "cannot be understood"),
        (("--kv-events-config", '{"enable": true}'), "unknown field `enable`"),
        (("--kv-events-config", '{"publisher": "kafka"}'), "kafka"),
        (("--kv-events-config", '{"hwm": 0}'), "at least 1"),
        (("--kv-events-config", '{"enable_kv_cache_events": 1}'), "Expected `bool`"),
    ],
)
def test_options_that_make_no_sense(call: Any, words: tuple[str, ...], told: str) -> None:
    outcome = call("serve", *words)
    assert outcome.status == 2
    assert told in outcome.err


def test_events_of_what_is_not_kept_are_refused(call: Any) -> None:
    config = json.dumps({"enable_kv_cache_events": True})
    outcome = call("serve", "--kv-events-config", config, "--no-enable-prefix-caching")
    outcome.check_refused("--kv-events-config", "leave it out")


def test_spans_over_what_is_not_spoken_are_refused(call: Any) -> None:
    outcome = call("serve", "--otlp-traces-endpoint", "grpc://localhost:4317")
    outcome.check_refused("--otlp-traces-endpoint", "http://localhost:4318/v1/traces")
