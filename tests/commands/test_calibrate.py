"""`looseleaf calibrate`"""

from pathlib import Path

from looseleaf.planner.calibrated import load_calibration
from looseleaf.planner.cost_model import StepPart

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
