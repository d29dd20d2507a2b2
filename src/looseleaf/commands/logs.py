"""Where log records go: to standard error, as lines to read or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

LOG_FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, an exception if there is one, and what the
    record has as its `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told | getattr(record, "fields", {}), default=str)


def set_up_logging(level: str, log_format: str) -> None:
    """For the whole process; `level` and `log_format` as options have them."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        text = "%(asctime)s %(levelname)s %(message)s"
        handler.setFormatter(logging.Formatter(text, datefmt="%H:%M:%S"))
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler])
