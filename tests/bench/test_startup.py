"""Starting processes, and what is known of this one."""

import mmap
import sys

import pytest

from looseleaf import LooseleafError
from looseleaf.bench.machine import machine, peak_memory_mib, reset_peak_memory
from looseleaf.bench.startup import Start, measure_startup, start


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_is_timed_to_its_first_output_and_to_its_end() -> None:
    found = start(python("import time; print('a', flush=True); time.sleep(0.3)"))
    assert 0 < found.first_output < found.end
    assert found.end - found.first_output > 0.25


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit('looseleaf: error: no such model')", "status 1: no such model"),
        ("pass", "status 0: it printed nothing"),
        ("print('half'); raise SystemExit(3)", "status 3: it printed nothing"),
    ],
)
def test_a_process_that_fails_is_no_result(code: str, told: str) -> None:
    with pytest.raises(LooseleafError, match=told):
        start(python(code))


def test_the_first_start_counts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([Start(9, 10), Start(1, 4), Start(3, 5), Start(2, 6)])
    monkeypatch.setattr("looseleaf.bench.startup.start", lambda _: next(starts))
    told: list[None] = []
    assert measure_startup(["x"], 3, lambda: told.append(None)) == {
        "first_token_s": 2,
        "end_s": 5,
        "first_run_s": 9,
        "rounds": 3,
        "first_token_s_of_rounds": [1, 3, 2],
    }
    assert len(told) == 4


def test_the_machine() -> None:
    found = machine()
    assert list(found) == ["cpu", "cores", "memory_gib"]
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0.1


def test_peak_memory() -> None:
    reset_peak_memory()
    before = peak_memory_mib()
    assert before > 5
    # A mapping of its own: an ordinary array may get memory that is there already.
    with mmap.mmap(-1, 64 * 2**20) as data:
        data.write(b"x" * len(data))
        assert peak_memory_mib() > before + 60
