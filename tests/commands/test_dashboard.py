"""deploy/grafana: every query is asked of a real Prometheus that watches a real server at work."""

import itertools
import json
import math
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

pytestmark = pytest.mark.timeout(150)

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "looseleaf.json").read_text())
PROMETHEUS = shutil.which("prometheus") or "/usr/bin/prometheus"

SECONDS = 30
WINDOW = "4s"
"""For $__rate_interval: long enough for many scrapes, and for slow machines."""
VARIABLES = {"$__rate_interval": WINDOW, "$model_name": ".*", "$instance": ".*"}


@dataclass(frozen=True)
class Query:
    panel: str
    text: str


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[Query]:
    found = []
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            assert "$" not in text
            found.append(Query(panel["title"], text))
    return found


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def get(self, path: str, **parameters: str) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def ask(self, query: str) -> list[float]:
        result = self.get("query", query=query)["result"]
        return [float(series["value"][1]) for series in result]


@pytest.fixture
def server(start: Any, tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """The address of one with little memory, tiers and guesses."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = start(
            *("serve", str(tiny_model), "--served-model-name", "tiny", "--port", "0"),
            *("--kv-cache-memory", "128KiB", "--block-size", "8", "--max-num-seqs", "4"),
            *("--swap-space", "1MiB", "--speculative-ngram", "2", "--admission-headroom", "0"),
            stderr=file,
        )
    deadline = time.monotonic() + SECONDS
    while (found := re.search(r" at http://(127\.0\.0\.1:\d+)/v1; ", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


@pytest.fixture
def prometheus(server: str, tmp_path: Path) -> Iterator[Prometheus]:
    """With the configuration that is in deploy, but for the address and for patience."""
    if not Path(PROMETHEUS).exists():
        pytest.skip("there is no prometheus here: apt-get install prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "250ms"
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [server]}]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = tmp_path / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={path}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=file,
            stderr=file,
        )
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=SECONDS, trust_env=False) as client:
            deadline = time.monotonic() + SECONDS
            while not _is_ready(client):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(SECONDS)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def load(server: str) -> Iterator[None]:
    """Requests that share prefixes, that are too many for the memory, and some that are wrong."""
    done = threading.Event()
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            with httpx.Client(base_url=f"http://{server}", timeout=SECONDS) as client:
                for i in itertools.count():
                    if done.is_set():
                        return
                    prompt = f"{'ab' * (i % 7)} and {number} goes on and on" * (1 + i % 4)
                    body = {"model": "tiny", "prompt": prompt, "max_tokens": 60}
                    answer = client.post("/v1/completions", json=body | {"temperature": 0})
                    assert answer.status_code == 200, answer.text
                    client.post("/v1/completions", json=body | {"temperature": -1})
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    yield
    done.set()
    for worker in workers:
        worker.join(SECONDS)
    assert failures == []


def test_every_query_has_an_answer(prometheus: Prometheus, load: None) -> None:
    deadline = time.monotonic() + 2 * SECONDS
    while prometheus.ask("count_over_time(up[1h])")[:1] < [8]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    unanswered = queries()
    for query in unanswered:
        prometheus.ask(query.text)  # which fails for what is no query
    while unanswered and time.monotonic() < deadline:
        time.sleep(0.5)
        # What is not a number is a ratio of nothing to nothing.
        unanswered = [
            query for query in unanswered if not any(map(math.isfinite, prometheus.ask(query.text)))
        ]
    assert unanswered == []
    assert prometheus.ask("min(up)") == [1]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            inside = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert inside is not None
            metric = inside[1].replace("$model_name", ".*")
            values = prometheus.get(f"label/{inside[2]}/values", **{"match[]": metric})
            assert len(values) == 1


def test_the_panels_stand_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_what_a_panel_needs_is_an_option(call: Any) -> None:
    """Descriptions say without which options a panel stays empty."""
    known = call("serve", "--help").out
    named = {
        option
        for panel in panels()
        for option in re.findall(r"--[a-z-]+", panel["description"].partition("Empty")[2])
    }
    assert named == {"--swap-space", "--kv-disk", "--speculative-ngram"}
    assert all(f" {option} " in known for option in named)
