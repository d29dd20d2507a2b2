"""Requests that depend on others: sessions, whose turns wait for answers, and their times."""

from collections.abc import Iterable, Iterator

from looseleaf.planner.trace_types import TraceRequest

Session = list[tuple[int, TraceRequest]]
"""Its requests with their places in the trace, the first one first."""


def joined(rows: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Rows of a trace, in their order, as requests that know what is before them.

    A later row of a session that names its prompt's blocks (`hash_ids`) tells the whole prompt. One
    that does not tells only what is new in it: before that stand the session's prompts and answers
    so far.
    """
    latest: dict[int | str, TraceRequest] = {}
    requests = []
    for row in rows:
        if row.session is not None:
            before = latest.get(row.session)
            if before is not None:
                row = _after(before, row)
            latest[row.session] = row  # type: ignore[index]
        requests.append(row)
    return requests


def _after(before: TraceRequest, row: TraceRequest) -> TraceRequest:
    arrival = None
    if before.arrival is not None:
        arrival = max(before.arrival + row.delay, row.arrival or 0.0)
    history = 0 if row.hash_ids else before.num_prompt_tokens + before.num_answered
    return row._replace(
        arrival=arrival,
        num_prompt_tokens=row.num_prompt_tokens + history,
        num_history=history,
    )


def num_sessions(requests: Iterable[TraceRequest]) -> int:
    """A request without a session is one."""
    alone, known = 0, set()
    for request in requests:
        if request.session is None:
            alone += 1
        else:
            known.add(request.session)
    return alone + len(known)


def sessions(requests: Iterable[TraceRequest]) -> list[Session]:
    """In the order of their first requests."""
    found: list[Session] = []
    known: dict[int | str, Session] = {}
    for index, request in enumerate(requests):
        if request.session in known:
            known[request.session].append((index, request))
            continue
        found.append([(index, request)])
        if request.session is not None:
            known[request.session] = found[-1]
    return found


def retimed(requests: Iterable[TraceRequest], starts: Iterator[float]) -> tuple[TraceRequest, ...]:
    """The same sessions in the same order, with other times to begin. What later turns wait for
    stays."""
    moved: list[TraceRequest] = []
    for session in sessions(requests):
        first = before = session[0][1]
        start = next(starts)
        for _, request in session:
            if request is first:
                arrival = start
            elif request.arrival is not None and first.arrival is not None:
                arrival = start + request.arrival - first.arrival
            else:
                arrival = (before.arrival or 0.0) + request.delay
            before = request._replace(arrival=arrival)
            moved.append(before)
    return tuple(sorted(moved, key=lambda request: request.arrival or 0.0))
