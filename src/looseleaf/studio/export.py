"""One HTML file that needs nothing else: the page, and what it is to show.

`make web` builds the page once more with its script and style inside: `export.html`, with a place
for data. The page fills it in when somebody exports a moment there; here that is done from a
recording.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.studio.frames import Delta, Frame, Request, Snapshot, encode
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import lines_and_frames_of

TEMPLATE = "export.html"

PLACE = b'<script type="application/json" id="embedded">null</script>'

HISTORY_SECONDS = 60.0

MAX_BYTES = 64 << 20
"""Of frames in a file; what came before is left out."""

MAX_ENDED = 200
"""Requests that ended before, and are told for what latencies they had."""


@dataclass(slots=True)
class Moment:
    """The newest frames up to a moment: a snapshot, the deltas after it, and who had ended."""

    frames: list[bytes]
    ended: list[dict[str, Any]]
    start: float
    end: float


def moment_of(path: Path, at: float | None = None, history: float = HISTORY_SECONDS) -> Moment:
    """What a recording shows `at` seconds after its beginning, or at its end, and so many seconds
    before. Raises LooseleafError."""
    lines = lines_and_frames_of(path)
    _, first = next(lines, (b"", None))
    if not isinstance(first, Snapshot):
        raise LooseleafError(f"{path} is empty: nothing was recorded")
    if at is not None and at < 0:
        raise LooseleafError(f"--at is {at:g}, but it is seconds from the recording's beginning")
    until = inf if at is None else first.time + at
    past = _Past(first)
    window: deque[tuple[bytes, Frame]] = deque()
    num_bytes = 0
    end = first.time
    later = False
    for line, frame in lines:
        if frame.time > until:
            later = True
            break
        end = frame.time
        window.append((line, frame))
        num_bytes += len(line)
        while window and (window[0][1].time < end - history or num_bytes > MAX_BYTES):
            line, old = window.popleft()
            num_bytes -= len(line)
            past.apply(old)
    if at is not None and not later and until > end + 1e-6:
        raise LooseleafError(
            f"--at is {at:g}, but the recording ends after {end - first.time:.1f} seconds"
        )
    frames = [encode(past.picture.snapshot()), *(line.rstrip(b"\n") for line, _ in window)]
    return Moment(frames, list(past.ended), past.picture.time, end)


def payload(moment: Moment, **more: Any) -> bytes:
    """What the page reads, as `web/src/embedded.ts` says."""
    told = {"kind": "moment", "ended": moment.ended, **more}
    return msgspec.json.encode(told)[:-1] + b',"frames":[' + b",".join(moment.frames) + b"]}"


def self_contained(static: Path, data: bytes) -> bytes:
    """The page, built into the folder `static`, with JSON in it. Raises LooseleafError where it was
    not built."""
    try:
        page = (static / TEMPLATE).read_bytes()
    except OSError:
        raise LooseleafError(
            "the studio's page is missing from this installation: build it with `make web`, which "
            "needs Node.js 20.19 or later; wheels have it"
        ) from None
    before, place, after = page.partition(PLACE)
    if not place:
        raise LooseleafError(f"{static / TEMPLATE} has no place for data: run `make web` again")
    start, _, finish = PLACE.partition(b"null")
    # Nothing in JSON but strings has a "<", and no string needs one to end a script.
    return before + start + data.replace(b"<", rb"\u003c") + finish + after


class _Past:
    """A picture, and who ended on the way to it."""

    def __init__(self, start: Snapshot) -> None:
        self.picture = Picture(start)
        self.ended: deque[dict[str, Any]] = deque(maxlen=MAX_ENDED)

    def apply(self, frame: Frame) -> None:
        gone: list[tuple[Request, float]] = []
        if isinstance(frame, Delta):
            times = {move.number: move.time for move in frame.moves if move.status == "finished"}
            for news in frame.requests:
                if news.status == "finished":
                    known = self.picture.requests.get(news.number, news)
                    gone.append((known, times.get(news.number, frame.time)))
        self.picture.apply(frame)  # which tells those that are known the rest
        self.ended.extend(_told(request, time) for request, time in gone)


_TOLD = {
    **{"id": "id", "prompt": "num_prompt_tokens", "tokens": "num_tokens"},
    **{"cached": "num_cached_tokens", "preemptions": "num_preemptions"},
    **{"arrival": "arrival_time", "first": "first_token_time", "reason": "reason"},
}


def _told(request: Request, ended: float) -> dict[str, Any]:
    known = dict(request.told())
    row = {short: known[name] for short, name in _TOLD.items() if name in known}
    return {"n": request.number, "ended": ended, **row}
