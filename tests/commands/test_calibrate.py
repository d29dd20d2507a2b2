"""`looseleaf calibrate`, and `looseleaf plan` with what it has measured."""

import json
from math import inf
from pathlib import Path

from looseleaf.planner.calibrated import load_calibration
from looseleaf.planner.cooling import Caches
from looseleaf.planner.cost_model import StepPart, summarize

FEW = ("--rounds", "1", "--max-num-seqs", "4", "--max-model-len", "128")


def test_a_model_of_this_machine(call, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    outcome = call("calibrate", "--model", str(tiny_model), *FEW, "--output", str(path), "--json")
    told = outcome.json
    assert told["output"] == str(path)
    assert told["num_steps"] > 50
    assert told["residuals"]["decode"]["num_steps"] > 20
    model = load_calibration(path)
    assert model.name == told["name"]
    assert str(tiny_model) in model.name
    assert 0 < model.seconds([StepPart(1, 20)]) < 10

    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 50, "output_length": 10, "hash_ids": []}
    trace.write_text(json.dumps(row))
    machine = ("--model", str(tiny_model), "--hardware", "epyc-9654", "--memory", "1GiB")
    plan = ("plan", str(trace), *machine, "--calibration", str(path))
    report = call(*plan, "--json").json
    assert report["cost_model"] == {"name": model.name, "known_error": model.known_error}
    steps = [StepPart(50, 0), *(StepPart(1, 50 + i) for i in range(9))]
    assert model.cooling is not None
    caches, seconds, idle = Caches(model.cooling), 0.0, inf
    for step in steps:
        summary = summarize([step])._replace(idle=idle, cold=caches.cold)
        caches.step(model.seconds_of(summary))
        seconds, idle = seconds + model.seconds_of(summary), 0.0
    assert abs(report["summary"]["e2e"]["p50"] / seconds - 1) < 0.01
    call(*plan, "--step-overhead", "1").check_refused("--calibration", "other options")


def test_in_words(call, tiny_model: Path) -> None:
    outcome = call("calibrate", "--model", str(tiny_model), *FEW)
    assert (outcome.status, outcome.err) == (0, "")
    for told in ("calibrated on", "decode", "95% within", "--output FILE"):
        assert told in outcome.out


def test_mistakes_are_told_before_anything_is_measured(
    call, tiny_model: Path, tmp_path: Path
) -> None:
    model = ("--model", str(tiny_model))
    call("calibrate", *model, "-o", str(tmp_path)).check_refused("--output", "no file")
    call("calibrate", *model, "-o", str(tmp_path / "no" / "c")).check_refused("--output")
    call("calibrate", *model, "--max-model-len", "8").check_refused("max_model_len 8", "raise it")
