"""`looseleaf doctor` and `looseleaf version`: what there is."""

import logging
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tiny_gguf import EXECUTOR

import looseleaf
from looseleaf.compiled import compiled
from looseleaf.engine.build import resolve_settings
from looseleaf.engine.settings import EngineSettings


def test_the_version_is_the_distributions(call, spawn) -> None:
    number = version("looseleaf")
    assert number == looseleaf.__version__
    assert call("version").out == call("--version").out == f"looseleaf {number}\n"
    assert call("version", "--json").json == {"version": number}
    assert spawn("version").out == f"looseleaf {number}\n"


def test_json_of_the_doctor(call, tmp_path: Path) -> None:
    (tmp_path / "cache" / "models" / "m").mkdir(parents=True)
    (tmp_path / "cache" / "models" / "m" / "m.gguf").touch()
    report = call("doctor", "--json", "--no-bandwidth").json
    assert list(report) == ["looseleaf", "machine", "models", "dependencies"]
    assert list(report["looseleaf"]) == [
        *("version", "python", "compiled_part", "executors", "auto_executor", "architectures")
    ]
    assert report["looseleaf"]["version"] == looseleaf.__version__
    native = [] if compiled() is None else ["native"]
    assert report["looseleaf"]["executors"] == [*native, "reference"]
    assert report["looseleaf"]["auto_executor"] == EXECUTOR
    assert resolve_settings(EngineSettings(executor="auto")).executor == EXECUTOR
    assert "llama" in report["looseleaf"]["architectures"]
    assert report["machine"].keys() >= {"processor", "cores_usable", "memory_available", "system"}
    assert report["machine"]["cores_usable"] >= 1
    assert "memory_read" not in report["machine"]
    assert report["models"] == {"folder": str(tmp_path / "cache"), "downloaded": ["m.gguf"]}
    assert "numpy" in report["dependencies"]
    assert "missing" not in report["dependencies"].values()


@pytest.mark.skipif(compiled() is None, reason="installed without the compiled part")
def test_the_bandwidth_is_measured_by_the_compiled_part(call) -> None:
    report = call("doctor", "--json").json
    assert report["looseleaf"]["compiled_part"] == "present"
    assert isinstance(report["machine"]["instruction_sets"], list)
    number, unit = report["machine"]["memory_read"].split()
    assert float(number) > 0.1
    assert unit == "GB/s"


def test_people_get_the_same_facts(call) -> None:
    outcome = call("doctor", "--no-bandwidth")
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles == ["looseleaf", "machine", "models", "dependencies"]
    facts = dict(line.split(maxsplit=1) for line in lines if line.startswith(" "))
    assert facts["version"] == looseleaf.__version__
    assert facts["executors"] == ("reference" if compiled() is None else "native, reference")
    assert facts["auto_executor"] == EXECUTOR
    assert facts["downloaded"] == "none"


def test_without_the_compiled_part_everything_runs_and_it_is_said_once(
    call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tiny_model: Path
) -> None:
    monkeypatch.setitem(sys.modules, "looseleaf._native", None)
    compiled.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            report = call("doctor", "--json").json
            assert report["looseleaf"]["executors"] == ["reference"]
            assert report["looseleaf"]["auto_executor"] == "reference"
            prompt = ("--prompt", "a", "--max-tokens", "2", "--json")
            call("generate", "--model", str(tiny_model), *prompt).json  # noqa: B018
        said = [r for r in caplog.records if "without its compiled part" in r.getMessage()]
        assert len(said) == 1
        assert "C++20 compiler" in said[0].getMessage()
    finally:
        compiled.cache_clear()
    assert report["looseleaf"]["compiled_part"] == "missing"
    assert not report["machine"].keys() & {"instruction_sets", "memory_read"}
