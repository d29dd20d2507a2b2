"""From the core's events to frames that viewers draw.

Events say what may have become different; how it is now is read from the core itself. So a delta is
no longer than what it describes, however much happened, and a viewer cannot drift from the core.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET, structs

from looseleaf.core import events as ev
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockKey
from looseleaf.core.request import Request, RequestId, Status
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.engine.engine import Engine
from looseleaf.engine.event_readers import add_reader, readers, remove_reader
from looseleaf.engine.misses import PrefixMisses
from looseleaf.studio import frames
from looseleaf.studio.frames import Copy, Delta, Move, Snapshot, Table
from looseleaf.studio.rows import BlockRows, Decode
from looseleaf.studio.steps import DoneStep, StepLog, StepTimes, step_runs

TIER_SECONDS = 1.0
"""Between two looks at the memory besides the pool, which may have to ask the disk."""

MAX_SHOWN = 2000
"""Moves in a delta, and copies; older ones are left out. They are shown, and never added up."""

_FIELDS = (
    *("status", "num_prompt_tokens", "num_tokens", "num_computed_tokens", "num_cached_tokens"),
    *("num_preemptions", "max_total_tokens", "priority", "arrival_time", "first_token_time"),
)
"""Of a request, under the names that they have in the core."""


_PROGRESS = ("num_tokens", "num_computed_tokens", "num_cached_tokens", "first_token_time")
"""Of these, what becomes different as a request runs."""

_COUNTERS = (
    *("steps", "computed_tokens", "prefix_queries", "prefix_hits", "preemptions", "held_back"),
)
"""Of the scheduler, under its names."""

_NEW = object()


class News(NamedTuple):
    """A delta, if anything became different; and a snapshot that holds it already, if asked for.

    With `lost`, the snapshot is for everybody: there is no delta to it from what they know.
    """

    delta: Delta | None
    snapshot: Snapshot | None
    lost: bool = False


class Gathered(NamedTuple):
    """What `Feed.gather` has read from the engine. `news` is work that needs no engine any more."""

    unfinished: News
    """Without what the steps computed."""
    done: list[DoneStep]
    numbers: dict[RequestId, int]

    def news(self) -> News:
        delta, snapshot, lost = self.unfinished
        if delta is not None and self.done:
            delta = structs.replace(delta, steps=step_runs(self.done, self.numbers.get))
        return News(delta, snapshot, lost)


@dataclass(slots=True)
class _Known:
    """A request, and what viewers know of it."""

    number: int
    request_id: RequestId
    request: Request | None
    num_prompt_tokens: int = 0
    """Of one that is gone before it was seen."""
    announced: bool = False
    sent: dict[str, Any] = field(default_factory=dict)
    table: list[BlockId] = field(default_factory=list)


@dataclass(slots=True)
class _Window:
    """What the events since the last delta say."""

    times: StepTimes
    seen: dict[RequestId, Request]
    blocks: set[BlockId] = field(default_factory=set)
    requests: dict[int, _Known] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    tables: dict[int, tuple[_Known, int]] = field(default_factory=dict)
    """From which entry on each is another."""
    moves: deque[Move] = field(default_factory=lambda: deque(maxlen=MAX_SHOWN))
    copies: deque[Copy] = field(default_factory=lambda: deque(maxlen=MAX_SHOWN))
    evicted: dict[BlockId, None] = field(default_factory=dict)
    numbers: dict[RequestId, int] = field(default_factory=dict)

    def changed(self, known: _Known, start: int) -> None:
        """A table, from entry `start` on."""
        before = self.tables.get(known.number)
        if before is None or start < before[1]:
            self.tables[known.number] = known, start


class Feed:
    """Watches an engine from `attach` to `detach`; without that it costs the engine nothing.

    All methods are called by the engine's owner between two steps. The engine's clock tells all
    times. With `decode`, viewers may read what requests say. Ids of requests are not used twice.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model: str = "",
        block_bytes: int = 0,
        decode: Decode | None = None,
        misses: PrefixMisses | None = None,
        capacity: int = 100_000,
    ) -> None:
        self._engine = engine
        self._allocator = engine.scheduler.allocator
        self._model, self._block_bytes, self._capacity = model, block_bytes, capacity
        self._paged = isinstance(self._allocator, BlockTables)
        self._rows = BlockRows(
            self._allocator, decode, None if engine.tiers is None else self._kept
        )
        self._misses = misses
        self._log = ev.EventLog(0)
        self._steps = StepLog(engine)
        self._seq = self._num_requests = self._output_tokens = self._sequence = 0
        self._known: dict[RequestId, _Known] = {}
        self._swapped: dict[int, _Known] = {}
        """Preempted, and maybe outside the pool."""
        self._pinned: Counter[BlockId] = Counter()
        self._counters = self._count()
        self._tiers: frames.Tiers | None = None
        self._tier_time = float("-inf")

    def attach(self) -> None:
        """O(blocks). Others may read the engine's events at the same time."""
        self._log = ev.EventLog(self._capacity)
        add_reader(self._allocator, self._log)
        self._engine.observers.append(self._steps.observe)
        self._start_over()

    def detach(self) -> None:
        if self._log in readers(self._allocator):
            remove_reader(self._allocator, self._log)
            self._engine.observers.remove(self._steps.observe)

    def collect(self, *, snapshot: bool = False) -> News:
        """What became different since the last call. O(what did, and what runs); a snapshot is
        O(blocks that are not free)."""
        return self.gather(snapshot=snapshot).news()

    def gather(self, *, snapshot: bool = False) -> Gathered:
        """The same, but for what another thread can do: the engine waits no longer than it must."""
        events = self._log.drain()
        if events and events[0].sequence != self._sequence + 1:
            self._start_over()
            self._seq += 1
            return Gathered(News(None, self._snapshot(), lost=True), [], {})
        now = self._engine.clock()
        window = _Window(*self._steps.take(now))
        delta = self._delta(events, window, now)
        news = News(delta, self._snapshot() if snapshot else None)
        return Gathered(news, window.times.done, window.numbers)

    def _start_over(self) -> None:
        """Know what there is now, whatever was known before."""
        self._sequence = self._log.sequence
        self._steps.take(0.0)
        self._known, self._swapped = {}, {}
        self._pinned = self._allocator.pinned.copy()
        for request in self._engine.scheduler.requests.values():
            known = self._meet(request.request_id, request)
            known.table = list(self._allocator.table(request.request_id))
            known.sent, known.announced = self._values(known), True
        self._rows.read_all()
        self._counters = self._count()
        self._tiers, self._tier_time = self._look_at_tiers(), self._engine.clock()

    def _snapshot(self) -> Snapshot:
        known = self._known.values()
        return Snapshot(
            seq=self._seq,
            time=self._engine.clock(),
            wall_time=time.time(),
            model=self._model,
            block_size=self._allocator.block_size,
            num_blocks=self._allocator.num_blocks,
            block_bytes=self._block_bytes,
            blocks=self._rows.taken(),
            requests=[frames.Request(number=k.number, id=k.request_id, **k.sent) for k in known],
            tables=[Table(k.number, 0, tuple(k.table)) for k in known if k.table],
            counters=self._counters,
            tiers=self._tiers,
        )

    def _delta(self, events: list[ev.Event], window: _Window, now: float) -> Delta | None:
        """Without what its steps computed."""
        for event in events:
            self._fold(event, window)
        self._sequence = self._log.sequence
        if self._pinned != self._allocator.pinned:
            window.blocks.update(self._pinned, self._allocator.pinned)
            self._pinned = self._allocator.pinned.copy()
        window.requests.update(self._swapped)
        requests = [self._news(k, window) for k in list(window.requests.values())]
        for request in self._engine.scheduler.running:
            known = self._of(request.request_id, window)
            if known.number not in window.requests:
                requests.append(self._progress(known, request))
        counters, tiers = self._count(), self._tiers
        if now - self._tier_time >= TIER_SECONDS:
            self._tier_time, tiers = now, self._look_at_tiers()
            window.blocks.update(self._rows.next_to_look_at())
        delta = Delta(
            seq=self._seq + 1,
            time=now,
            blocks=self._rows.changes(window.blocks),
            requests=[news for news in requests if news is not None],
            tables=[
                Table(number, start, tuple(known.table[start:]))
                for number, (known, start) in window.tables.items()
            ],
            moves=list(window.moves),
            copies=list(window.copies),
            evicted=list(window.evicted),
            counters=None if counters == self._counters else counters,
            tiers=None if tiers == self._tiers else tiers,
        )
        self._counters, self._tiers = counters, tiers
        happened = window.times.done or any(
            getattr(delta, name) for name in Delta.__struct_fields__[2:]
        )
        if not happened:
            return None
        self._seq += 1
        return delta

    def _fold(self, event: ev.Event, window: _Window) -> None:
        # The most frequent first: there may be thousands.
        match event:
            case ev.TableChanged(_, request_id, start, block_ids):
                known = self._of(request_id, window)
                window.blocks.update(known.table[start:], block_ids)
                known.table[start:] = block_ids
                window.changed(known, start)
                if not self._paged:
                    window.requests[known.number] = known  # its region may be another
            case ev.BlockPublished(_, block_id):
                window.blocks.add(block_id)
            case ev.StepScheduled(_, step_id):
                window.times.scheduled(step_id)
            case ev.BlockUnpublished(_, block_id):
                window.blocks.add(block_id)
                if self._rows.row(block_id).ref_count == 0:
                    window.evicted[block_id] = None
            case ev.RequestMoved(_, request_id, status, _, cause):
                self._moved(request_id, status, cause, window)
            case ev.RequestAdded(_, request_id, num_prompt_tokens):
                self._added(request_id, num_prompt_tokens, window)
            case ev.TableFreed(_, request_id):
                known = self._of(request_id, window)
                window.blocks.update(known.table)
                known.table = []
                window.requests[known.number] = known
                window.changed(known, 0)
            case ev.BlockCopied(_, request_id, source, destination):
                number = self._of(request_id, window).number
                window.copies.append(Copy(number, source, destination))
                window.blocks.update((source, destination))

    def _added(self, request_id: RequestId, num_prompt_tokens: int, window: _Window) -> None:
        known = self._of(request_id, window)
        known.num_prompt_tokens = num_prompt_tokens
        request = known.request
        arrival = window.times.next_start if request is None else request.arrival_time
        window.requests[known.number] = known
        window.moves.append(Move(arrival, known.number, Status.WAITING))
        for child in () if request is None else request.children:
            sample = self._of(child.request_id, window)
            window.requests[sample.number] = sample
            window.moves.append(Move(arrival, sample.number, Status.HELD, request_id))

    def _moved(self, request_id: RequestId, status: Status, cause: str, window: _Window) -> None:
        known = self._of(request_id, window)
        begins = status in (Status.RUNNING, Status.HELD)
        moment = window.times.next_start if begins else window.times.last_end
        window.requests[known.number] = known
        window.moves.append(Move(moment, known.number, status, cause))
        self._swapped.pop(known.number, None)
        if status is Status.FINISHED:
            window.reasons[known.number] = cause
            del self._known[request_id]
        elif status is Status.WAITING and self._engine.tiers is not None:
            self._swapped[known.number] = known

    def _of(self, request_id: RequestId, window: _Window) -> _Known:
        """The request, which may be new."""
        known = self._known.get(request_id)
        if known is None:
            live = self._engine.scheduler.requests.get(request_id)
            known = self._meet(request_id, live or window.seen.get(request_id))
        window.numbers[request_id] = known.number
        return known

    def _meet(self, request_id: RequestId, request: Request | None) -> _Known:
        self._num_requests += 1
        known = self._known[request_id] = _Known(self._num_requests, request_id, request)
        return known

    def _progress(self, known: _Known, request: Request) -> frames.Request | None:
        """The same as `_news`, of one that no event was about: it has run on."""
        sent = known.sent
        news = {}
        for name in _PROGRESS:
            value = getattr(request, name)
            if value != sent[name]:
                news[name] = value
        if not news:
            return None
        self._output_tokens += request.num_tokens - sent["num_tokens"]
        sent.update(news)
        return frames.Request(number=known.number, **news)

    def _news(self, known: _Known, window: _Window) -> frames.Request | None:
        """What viewers do not know of a request yet."""
        values = self._values(known)
        reason = window.reasons.get(known.number)
        if reason is not None:
            values["status"], values["reason"] = Status.FINISHED, reason
        if known.request is not None:
            before = known.sent.get("num_tokens", known.request.num_prompt_tokens)
            self._output_tokens += known.request.num_tokens - before
        sent = known.sent
        news = {name: v for name, v in values.items() if sent.get(name, _NEW) != v}
        if not news:
            return None
        if not known.announced:
            known.announced = True
            news["id"] = known.request_id
        known.sent.update(values)
        return frames.Request(number=known.number, **news)

    def _values(self, known: _Known) -> dict[str, Any]:
        request, allocator = known.request, self._allocator
        if request is None:
            return {"num_prompt_tokens": known.num_prompt_tokens}
        values: dict[str, Any] = {name: getattr(request, name) for name in _FIELDS}
        tiers = self._engine.tiers
        if tiers is not None:
            waits = request.status is Status.WAITING and request.num_preemptions > 0
            values["num_kept_blocks"] = sum(map(tiers.has, request.block_keys)) if waits else 0
        if isinstance(allocator, ContiguousTables):
            held = bool(known.table)
            values["region_blocks"] = allocator.region_blocks(request.request_id) if held else 0
        return values

    def _kept(self, key: BlockKey) -> int:
        tiers = self._engine.tiers
        if tiers is None or not tiers.has(key):
            return frames.NOT_KEPT
        in_memory = tiers.host is not None and tiers.host.has(key)
        return frames.IN_MEMORY if in_memory else frames.ON_DISK

    def _count(self) -> frames.Counters:
        counters = self._engine.scheduler.counters
        return frames.Counters(
            output_tokens=self._output_tokens,
            copies=self._allocator.num_copies if isinstance(self._allocator, BlockTables) else 0,
            misses=UNSET if self._misses is None else _told(self._misses),
            **{name: getattr(counters, name) for name in _COUNTERS},
        )

    def _look_at_tiers(self) -> frames.Tiers | None:
        tiers = self._engine.tiers
        if tiers is None:
            return None
        figures = tiers.figures()
        return frames.Tiers(
            host_blocks=0 if tiers.host is None else len(tiers.host),
            host_bytes=figures.host_bytes,
            disk_bytes=figures.disk_bytes,
            saved=figures.saved,
            loaded_from_host=figures.loaded_from_host,
            loaded_from_disk=figures.loaded_from_disk,
        )


def _told(misses: PrefixMisses) -> dict[str, int]:
    return {reason.value: count for reason, count in misses.tokens.items() if count}
