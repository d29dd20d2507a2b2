"""What traces are read into."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class TraceRequest(NamedTuple):
    """`arrival` is in seconds from the first, None where only lengths are known. `hash_ids` name
    the prompt's blocks: equal ones stand for equal tokens after equal ones. `num_samples` answers
    of one length are generated; with a `beam_width`, the best so many of a beam search instead.

    A request comes `delay` seconds after the end of the one before it in its `session`, and not
    before `arrival`. `num_history` tokens of its prompt are that one's prompt and answer; the rest
    is new.

    Whoever asked goes away once the first answer has `leaves_after` tokens.
    """

    arrival: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    num_samples: int = 1
    session: int | str | None = None
    delay: float = 0.0
    num_history: int = 0
    beam_width: int = 0
    priority: int = 0
    leaves_after: int | None = None

    @property
    def num_answered(self) -> int:
        """How long its answer gets."""
        left = self.leaves_after
        return self.num_output_tokens if left is None else min(left, self.num_output_tokens)


class BadRow(NamedTuple):
    """A row that is not used, and why; lines are counted from 1."""

    line: int
    reason: str


SHOWN_ROWS = 20


def first_bad_rows(rows: Sequence[BadRow]) -> list[dict[str, Any]]:
    """For a report."""
    return [row._asdict() for row in rows[:SHOWN_ROWS]]


def bad_row_lines(num: int, first: Sequence[Mapping[str, Any]]) -> list[str]:
    """`first_bad_rows` of `num`, for people; nothing if there are none."""
    if not num:
        return []
    lines = ["", f"{num} rows of the trace are not used:"]
    lines += [f"  line {row['line']}: {row['reason']}" for row in first]
    return [*lines, f"  and {num - len(first)} more"] if num > len(first) else lines


class Trace(NamedTuple):
    """`timed` says whether requests have times, `hashed_tokens` for how many tokens of a prompt
    each of its hashes stands. With `users`, a closed loop, times mean nothing: so many sessions go
    on at once, and the next one begins its `delay` after one has ended. A request without a session
    is one of its own."""

    requests: tuple[TraceRequest, ...]
    bad_rows: tuple[BadRow, ...]
    timed: bool
    hashed_tokens: int
    users: int | None = None
