"""Whatever can be played, as a trace. A recording becomes one to be played on another machine, or
with other settings."""

from contextlib import suppress
from pathlib import Path

from looseleaf.core.errors import ConfigError
from looseleaf.core.request import RequestId
from looseleaf.engine import journal
from looseleaf.planner.distribution import read_cdf
from looseleaf.planner.recording import (
    Recording,
    RecordingEnded,
    events,
    exact_replay,
    read_recording,
)
from looseleaf.planner.synthetic import Arrivals, TrafficClass, Workload, synthesize
from looseleaf.planner.trace import TraceError, read_trace
from looseleaf.planner.trace_types import BadRow, Trace, TraceRequest
from looseleaf.planner.workload_file import MAX_REQUESTS, read_workload_file

HASHED_TOKENS = 16

DRAWN_REQUESTS = 1000
"""From a distribution of lengths, if nobody says how many."""


def read_workload(
    path: Path,
    *,
    seed: int | None = None,
    output_share: float | None = None,
    num_drawn: int = DRAWN_REQUESTS,
) -> Trace:
    """Of a recording or of any other trace; or drawn at random, for a workload (.yaml), or for a
    distribution of lengths (.json), of which `output_share` is the answer: `num_drawn` requests
    without times. Raises what reading them does."""
    if output_share is not None and path.suffix.lower() != ".json":
        raise ConfigError(
            f"output_share is for a .json with a CDF of lengths, and {path.name} is none: leave it "
            "out"
        )
    if path.suffix.lower() in (".yaml", ".yml"):
        return synthesize(read_workload_file(path, seed))
    if path.suffix.lower() == ".json":
        return _drawn(path, seed or 0, output_share, num_drawn)
    try:
        with path.open("rb") as file:
            recorded = file.read(100).startswith(b'{"type":"looseleaf"')
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    return trace_of(read_recording(path)) if recorded else read_trace(path)


def _drawn(path: Path, seed: int, output_share: float | None, num_requests: int) -> Trace:
    prompt = read_cdf(path)
    if num_requests > MAX_REQUESTS:
        raise ConfigError(
            f"limit is {str(num_requests)[:40]}, but at most {MAX_REQUESTS} requests are drawn"
        )
    if output_share is None:
        raise ConfigError(
            f"{path} says how long prompt and answer are together: say with --output-share how "
            "much of that is the answer, like 0.2"
        )
    if not 0 < output_share < 1:
        raise ConfigError(f"output_share is {output_share:g}, but it must be between 0 and 1")
    lengths = TrafficClass(name="all", prompt=prompt, output_share=output_share)
    arrivals = Arrivals(process="constant", rate=1.0)
    workload = Workload(arrivals=arrivals, classes=(lengths,), num_requests=num_requests, seed=seed)
    return synthesize(workload)._replace(timed=False)


def trace_of(recording: Recording) -> Trace:
    """What came when, and what it shared, by hashes of 16 tokens each.

    Answers are as long as they were, also where they were given up; samples of one prompt all as
    long as the longest. A beam search becomes as many samples as it is wide. Those whose end was
    not recorded are listed as bad rows, by their number. Raises TraceError if none is left.
    """
    lengths = _lengths(recording)
    hashes: dict[tuple[int, tuple[int, ...]], int] = {}
    requests: list[TraceRequest] = []
    bad_rows: list[BadRow] = []
    for number, asked in enumerate(recording.asked, 1):
        if isinstance(asked, journal.Searched):
            num_samples, output = asked.params.beam_width, asked.params.max_tokens
            token_ids = asked.token_ids
        elif isinstance(asked, journal.Added):
            members = (asked.request, *asked.request.children)
            found = [lengths[m.request_id] for m in members if m.request_id in lengths]
            if not found:
                bad_rows.append(BadRow(number, "did not end in the recording"))
                continue
            num_samples, output, token_ids = len(members), max(found), asked.request.token_ids
        else:
            continue
        hash_ids = _hash_ids(token_ids, hashes)
        requests.append(TraceRequest(asked.time, len(token_ids), output, hash_ids, num_samples))
    if not requests:
        raise TraceError("the recording has no request that ended")
    start = requests[0].arrival or 0.0
    moved = tuple(r._replace(arrival=(r.arrival or 0.0) - start) for r in requests)
    return Trace(moved, tuple(bad_rows), True, HASHED_TOKENS)


def _lengths(recording: Recording) -> dict[RequestId, int]:
    """Of the answers that ended: nothing says how long they were but the steps themselves."""
    replay = exact_replay(recording)
    with suppress(RecordingEnded):  # the server was killed
        replay.run(events(recording, None))
    return {o.request_id: o.num_output_tokens for o in replay.result.outcomes}


def _hash_ids(
    token_ids: list[int], hashes: dict[tuple[int, tuple[int, ...]], int]
) -> tuple[int, ...]:
    """Of full blocks; equal ones for equal tokens after equal ones."""
    found: list[int] = []
    parent = -1
    for start in range(0, len(token_ids) - HASHED_TOKENS + 1, HASHED_TOKENS):
        block = (parent, tuple(token_ids[start : start + HASHED_TOKENS]))
        parent = hashes.setdefault(block, len(hashes))
        found.append(parent)
    return tuple(found)
