"""`looseleaf calibrate --url`: a server whose steps take a time that is known."""

import json
import time
from pathlib import Path
from statistics import median, stdev
from typing import Any

import pytest

from looseleaf.cli import main
from looseleaf.core.step import Step, StepResult
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.planner.calibrated import load_calibration
from looseleaf.planner.cost_model import StepPart
from looseleaf.server.keys import KeyRing, Tenant

STEP, TOKEN = 0.02, 0.0005
"""Seconds."""


class Timed(ScriptedExecutor):
    """Takes so much for a step, and for each of its tokens, and never less. `late` has the seconds
    by which a step took longer, from the end of the one before."""

    def __init__(self) -> None:
        super().__init__(1024, 4, lambda *_: ord("a"), vocab_size=259)
        self.late: list[float] = []
        self._end = 0.0

    def execute(self, step: Step) -> StepResult:
        start, before = time.perf_counter(), self._end
        seconds = STEP + TOKEN * step.num_tokens
        result = super().execute(step)
        time.sleep(max(0.0, start + seconds - time.perf_counter()))
        self._end = time.perf_counter()
        if start - before < STEP:  # nobody was waited for
            self.late.append(self._end - before - seconds)
        return result


def calibrate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["calibrate", "--rounds", "1", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_times_that_are_known_are_found(
    start_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(num_blocks=1024, keys=KeyRing([("secret-of-alice", Tenant("alice"))]))
    server.executor.inner = timed = Timed()
    path = tmp_path / "server.json"
    told = calibrate(
        capsys,
        *("--url", f"{server.url}/v1", "--api-key", "secret-of-alice", "--output", str(path)),
        *("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "200"),
    )
    assert told["name"] == f"calibrated on {server.url}/v1, tiny"
    assert told["residuals"]["decode"]["num_steps"] >= 8
    assert told["request_seconds"] >= 0
    model = load_calibration(path)
    # On a crowded machine all is late, but by what the steps themselves have seen of it.
    late = median(timed.late) + stdev(timed.late)
    for parts in ([(1, 50)], [(1, 100)] * 4, [(40, 0)]):
        truth = STEP + TOKEN * sum(new for new, _ in parts)
        seconds = model.seconds([StepPart(*part) for part in parts])
        assert 0.8 * truth < seconds < 1.2 * truth + late, parts


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "other"], "does not serve 'other', but tiny"),
        (["--max-model-len", "20"], "leaves no room"),
        (["--api-key", "wrong"], "answers 401"),
    ],
)
def test_mistakes_are_told(
    start_server: Any, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    server = start_server(keys=KeyRing([("secret-of-alice", Tenant("alice"))]))
    url = f"{server.url}/v1"
    assert main(["calibrate", "--url", url, "--api-key", "secret-of-alice", *words]) == 2
    assert told in capsys.readouterr().err
