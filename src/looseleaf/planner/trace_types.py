"""What traces are read into."""

from typing import NamedTuple


class TraceRequest(NamedTuple):
    """`arrival` is in seconds from the first, None where only lengths are known. `hash_ids` name
    the prompt's blocks: equal ones stand for equal tokens after equal ones. `num_samples` answers
    of one length are generated."""

    arrival: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    num_samples: int = 1


class BadRow(NamedTuple):
    """A row that is not used, and why; lines are counted from 1."""

    line: int
    reason: str


class Trace(NamedTuple):
    """`timed` says whether requests have times, `hashed_tokens` for how many tokens of a prompt
    each of its hashes stands."""

    requests: tuple[TraceRequest, ...]
    bad_rows: tuple[BadRow, ...]
    timed: bool
    hashed_tokens: int
