"""Log records as JSON, and where they go."""

import json
import logging
import sys

import pytest

from looseleaf.commands.logs import JsonFormatter, set_up_logging


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_records_go_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    root = logging.Logger("root of a new process")
    monkeypatch.setattr(logging, "root", root)
    set_up_logging("info", log_format)
    logger = logging.Logger("some.logger")
    logger.parent = root
    logger.info("%d things\nin two lines, é", 2, extra={"fields": {"request_id": "x", "n": 3}})
    assert root.level == logging.INFO
    out, err = capsys.readouterr()
    assert out == ""
    if log_format == "text":
        assert err.endswith("INFO 2 things\nin two lines, é\n")
        return
    told = json.loads(err)
    assert err.count("\n") == 1
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "info",
        "logger": "some.logger",
        "message": "2 things\nin two lines, é",
        "request_id": "x",
        "n": 3,
    }


def test_an_exception_is_in_its_record() -> None:
    try:
        raise ValueError("what went wrong")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "it failed", (), sys.exc_info())
    told = json.loads(JsonFormatter().format(record))
    assert told["message"] == "it failed"
    assert told["exception"].endswith("ValueError: what went wrong")
