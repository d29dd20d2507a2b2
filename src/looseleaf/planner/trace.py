"""Requests of the past, read from a file: when they came, how long they were, what they shared."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class TraceRequest(NamedTuple):
    """`arrival` is in seconds. `hash_ids` name the prompt's blocks: equal ones stand for equal
    tokens after equal ones."""

    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...]


class BadRow(NamedTuple):
    """A row that is not used, and why; lines are counted from 1."""

    line: int
    reason: str


class Trace(NamedTuple):
    """Rows in the file's order."""

    requests: tuple[TraceRequest, ...]
    bad_rows: tuple[BadRow, ...]


def read_mooncake(path: Path) -> Trace:
    """A trace as JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

    Rows that cannot be used are listed, never dropped silently; blank lines are no rows. Raises
    OSError if the file cannot be read.
    """
    requests: list[TraceRequest] = []
    bad_rows: list[BadRow] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                requests.append(_mooncake_request(json.loads(line)))
            except (ValueError, RecursionError) as error:
                reason = str(error) if type(error) is ValueError else "is not JSON"
                bad_rows.append(BadRow(number, reason))
    return Trace(tuple(requests), tuple(bad_rows))


def _mooncake_request(row: Any) -> TraceRequest:
    if not isinstance(row, dict):
        raise ValueError("is not an object")
    for name, least in (("timestamp", 0), ("input_length", 1), ("output_length", 0)):
        value: Any = row.get(name)
        kinds = (int, float) if name == "timestamp" else (int,)
        if type(value) not in kinds or not least <= value < 2**53:
            raise ValueError(f"{name} is not a number of at least {least}")
    hash_ids = row.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(type(one) is int for one in hash_ids):
        raise ValueError("hash_ids is not a list of whole numbers")
    return TraceRequest(
        row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(hash_ids)
    )
