"""One row of a trace, in each of the formats that traces come in.

JSON lines:

    Mooncake      timestamp (ms), input_length, output_length, hash_ids; session_id, delay (ms)
    Bailian       the same, with chat_id, and timestamp in seconds; each row has its own time
    OpenAI logs   usage of a response (prompt_tokens, completion_tokens, or input_ and
                  output_tokens), itself or in `response` or its `body`, and when it was asked:
                  created, created_at or timestamp, as epoch seconds or ISO 8601
    lengths       input_length and output_length, or the names below

A row of a Mooncake session (`session_id`) after its first comes `delay` after the end of the answer
before it, and if it has a timestamp, not before that: as public load generators replay such traces.
They differ about prompts. Here hash_ids name the whole prompt, as Mooncake's own do; without them,
`input_length` counts only what is new, and what was said before stands in front of it.

CSV: a column for each of the time, the prompt's and the output's tokens, under any of these names.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from looseleaf.planner.trace_types import TraceRequest

PROMPTS = (
    "input_length",
    "ContextTokens",
    "num_prefill_tokens",
    "prompt_tokens",
    "input_tokens",
    "input_toks",
    "Request tokens",
)
OUTPUTS = (
    "output_length",
    "GeneratedTokens",
    "num_decode_tokens",
    "completion_tokens",
    "output_tokens",
    "output_toks",
    "Response tokens",
)
TIMES = (
    "TIMESTAMP",
    "timestamp",
    "Timestamp",
    "arrived_at",
    "arrival_time",
    "created_at",
    "created",
)

_MOST = 2**53

MOST_TOKENS = 10_000_000
"""Of a prompt or an answer: more are another column, or another unit."""


def csv_request(row: Mapping[str | None, Any]) -> TraceRequest:
    """Raises ValueError that says what is wrong with the row."""
    time = next((row[name] for name in TIMES if row.get(name) not in (None, "")), None)
    arrival = None if time is None else _time(str(time))
    return TraceRequest(arrival, _length(row, PROMPTS, 1), _length(row, OUTPUTS, 0))


def jsonl_request(row: Any) -> TraceRequest:
    """Raises ValueError that says what is wrong with the row."""
    if not isinstance(row, dict):
        raise ValueError("is not an object")
    for outer in (row, row.get("response"), _get(row.get("response"), "body")):
        usage = _get(outer, "usage")
        if isinstance(usage, dict):
            return _logged(usage, (row, outer))
    arrival = None
    if row.get("timestamp") is not None:
        milliseconds = "chat_id" not in row
        arrival = _number(row["timestamp"], "timestamp") / (1000 if milliseconds else 1)
    elif "arrival_time" in row:
        arrival = _number(row["arrival_time"], "arrival_time")
    hash_ids = [] if row.get("hash_ids") is None else row["hash_ids"]
    if not isinstance(hash_ids, list) or not all(type(one) is int for one in hash_ids):
        raise ValueError("hash_ids is not a list of whole numbers")
    if any(not 0 <= one < _MOST for one in hash_ids):
        raise ValueError("hash_ids has a number that is below 0 or too large")
    prompt, output = _length(row, PROMPTS, 1), _length(row, OUTPUTS, 0)
    session, delay = _turn(row)
    return TraceRequest(arrival, prompt, output, tuple(hash_ids), session=session, delay=delay)


def _turn(row: Mapping[str, Any]) -> tuple[int | str | None, float]:
    session = row.get("session_id")
    if session is not None and type(session) not in (int, str):
        raise ValueError("session_id is neither a text nor a whole number")
    name = "delay_ms" if "delay_ms" in row else "delay"
    delay = row.get(name)
    return session, 0.0 if delay is None else _number(delay, name) / 1000


def _logged(usage: Mapping[str, Any], places: tuple[Any, ...]) -> TraceRequest:
    for place in places:
        for name in ("created_at", "created", "timestamp", "time"):
            value = _get(place, name)
            if value is not None:
                arrival = _time(value) if isinstance(value, str) else _number(value, name)
                return TraceRequest(arrival, _length(usage, PROMPTS, 1), _length(usage, OUTPUTS, 0))
    return TraceRequest(None, _length(usage, PROMPTS, 1), _length(usage, OUTPUTS, 0))


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _length(row: Mapping[Any, Any], names: tuple[str, ...], least: int) -> int:
    name = next((name for name in names if name in row), None)
    if name is None:
        raise ValueError(f"{names[0]} is missing")
    value = row[name]
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,15}(\.0*)?\s*", value, re.ASCII):
        value = int(float(value))
    if isinstance(value, float) and value.is_integer():  # as tables with gaps are written
        value = int(value)
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    if type(value) is not int or not least <= value <= MOST_TOKENS:
        raise ValueError(
            f"{name} is {_shown(value)}, but it must be a whole number from {least} to "
            f"{MOST_TOKENS}"
        )
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST:
        raise ValueError(f"{name} is {_shown(value)}, but it must be a number from 0 to 2^53")
    return float(value)


def _shown(value: Any) -> str:
    """Short, on one line, and text quoted: it is the user's own file, but may be anything."""
    return f"{value!r:.40}" if isinstance(value, str) else f"{value!s:.40}"


def _time(text: str) -> float:
    """Seconds, from a number or a date with up to seven digits after the second, as Azure has."""
    try:
        return _number(float(text), "the time")
    except ValueError:
        pass
    whole, dot, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        date = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        raise ValueError(f"its time {text!r:.40} is neither a number nor a date") from None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return date.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)
