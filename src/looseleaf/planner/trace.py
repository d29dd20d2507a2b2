"""Requests of the past, read from a file: when they came, how long they were, what they shared."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from looseleaf.core.errors import LooseleafError
from looseleaf.planner.sessions import joined
from looseleaf.planner.trace_rows import OUTPUTS, PROMPTS, csv_request, jsonl_request
from looseleaf.planner.trace_types import BadRow, Trace, TraceRequest

__all__ = ["BadRow", "Trace", "TraceError", "TraceRequest", "read_trace"]

HASH_SIZES = (512, 256, 128, 64, 32, 16)
"""Tokens for which traces have a hash each."""


class TraceError(LooseleafError):
    """A file from which no request can be read."""


def read_trace(path: Path) -> Trace:
    """Requests from JSON lines or CSV, whatever format the rows have (trace_rows.py).

    Rows that cannot be used are listed, never dropped silently; blank lines are no rows. Times
    begin with 0. Requests are in the order of their times, equal ones in that of the file; later
    turns of a session in that of the first times at which they could come. Raises
    TraceError if there is none, or if the file cannot be read.
    """
    try:
        with path.open("r", encoding="utf-8-sig", newline="") as file:
            rows = _csv_rows(file) if path.suffix.lower() == ".csv" else _json_rows(file)
            requests, bad_rows = _read(rows)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no text: {error.reason}") from None
    if not requests:
        first = f": line {bad_rows[0].line} {bad_rows[0].reason}" if bad_rows else ""
        raise TraceError(f"{path} has no row that can be used{first}{_names_for(bad_rows)}")
    requests = joined(requests)
    timed = all(request.arrival is not None for request in requests)
    if not timed and any(request.arrival is not None for request in requests):
        raise TraceError(f"{path}: some rows have a time and some have none")
    return Trace(_ordered(requests), tuple(bad_rows), timed, _hashed_tokens(requests))


Row = tuple[int, Callable[[], TraceRequest]]


def _read(rows: Iterator[Row]) -> tuple[list[TraceRequest], list[BadRow]]:
    requests: list[TraceRequest] = []
    bad_rows: list[BadRow] = []
    for number, read in rows:
        try:
            requests.append(read())
        except ValueError as error:
            bad_rows.append(BadRow(number, str(error)))
    return requests, bad_rows


def _names_for(bad_rows: list[BadRow]) -> str:
    """Where a length is looked for, if none is there."""
    for names in (PROMPTS, OUTPUTS):
        if bad_rows and bad_rows[0].reason == f"{names[0]} is missing":
            return f", nor one of {', '.join(names[1:])}"
    return ""


def _json_rows(lines: Any) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, lambda line=line: jsonl_request(_parsed(line))  # type: ignore[misc]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None


def _csv_rows(lines: Any) -> Iterator[Row]:
    reader = csv.DictReader(lines, skipinitialspace=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.reader.line_num, lambda reason=str(error): _refuse(reason)  # type: ignore[misc]
            continue
        yield reader.line_num, lambda row=row: csv_request(row)  # type: ignore[misc]


def _refuse(reason: str) -> TraceRequest:
    raise ValueError(f"is no row of CSV: {reason}")


def _ordered(requests: list[TraceRequest]) -> tuple[TraceRequest, ...]:
    start = min(request.arrival or 0.0 for request in requests)
    moved = [r if r.arrival is None else r._replace(arrival=r.arrival - start) for r in requests]
    return tuple(sorted(moved, key=lambda request: request.arrival or 0.0))


def _hashed_tokens(requests: list[TraceRequest]) -> int:
    """For how many tokens there is a hash: the most with which all rows agree."""
    for size in HASH_SIZES:
        if all(
            len(r.hash_ids) in (r.num_prompt_tokens // size, -(-r.num_prompt_tokens // size))
            for r in requests
            if r.hash_ids
        ):
            return size
    return HASH_SIZES[0]
