"""One feed for any number of viewers: collected ten times a second while there are any, or less
often where that would cost the engine anything that can be noticed.

An engine's owner does the collecting, between two steps; whoever is slow to read what comes of it
is let go, and holds up nobody.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.engine import Engine
from looseleaf.engine.misses import PrefixMisses
from looseleaf.studio.feed import Feed, Gathered
from looseleaf.studio.frames import encode
from looseleaf.studio.ring import Ring
from looseleaf.studio.rows import Decode

T = TypeVar("T")

INTERVAL = 0.1
"""Seconds between two deltas."""

SHARE = 0.01
"""Of the processor's time, at most, that deltas take: where they take more, they are fewer."""

MAX_INTERVAL = 0.5

MAX_WAITING = 50
"""Frames that a viewer may be behind."""

MAX_VIEWERS = 32

HEARTBEAT_SECONDS = 15.0

LINGER_SECONDS = 2.0
"""A page that is loaded again finds what it has seen."""

logger = logging.getLogger(__name__)


class Call(Protocol):
    """Runs a function where the engine's owner is, between two steps, and gives back its result.
    Raises LooseleafError once the engine has ended."""

    def __call__(self, function: Callable[[Engine], T], /) -> Awaitable[T]: ...


class TooManyViewersError(LooseleafError):
    """Somebody else has to stop watching first."""


class Hub:
    """Belongs to the event loop's thread. `model` and `block_bytes` are told to viewers; with
    `decode`, so is the text of what is stored, and with `misses`, why prompts were not found.

    While anybody watches, and for `linger` seconds after, the newest frames are kept for whoever
    wants to see what was."""

    def __init__(
        self,
        call: Call,
        *,
        model: str = "",
        block_bytes: int = 0,
        decode: Decode | None = None,
        misses: PrefixMisses | None = None,
        interval: float = INTERVAL,
        linger: float = 0.0,
    ) -> None:
        self._call = call
        self._misses, self._linger = misses, linger
        self._ring = Ring()
        self._model, self._block_bytes, self._decode = model, block_bytes, decode
        self._interval = interval
        self._viewers: dict[_Viewer, None] = {}
        self._work: asyncio.Task[None] | None = None

    @property
    def num_viewers(self) -> int:
        return len(self._viewers)

    def watch(
        self, max_waiting: int = MAX_WAITING, *, past: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Frames in JSON, a snapshot first; empty bytes now and then where there is nothing to
        tell. Ends with the engine, or when the reader is more than `max_waiting` frames behind.
        With `past` they begin with what is kept of those that were.

        Raises TooManyViewersError.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            raise TooManyViewersError(f"{MAX_VIEWERS} viewers watch already: close one of them")
        viewer = _Viewer(max_waiting, self._ring.frames() if past else [])
        self._viewers[viewer] = None
        self._start()
        return self._frames(viewer)

    async def _frames(self, viewer: "_Viewer") -> AsyncGenerator[bytes, None]:
        try:
            for frame in viewer.before:
                yield frame
            viewer.before.clear()
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        next_ = await viewer.frames.get()
                except TimeoutError:
                    yield b""
                    continue
                if next_ is None:
                    return
                yield next_
        finally:
            self._viewers.pop(viewer, None)

    async def close(self) -> None:
        """Let all viewers go."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _start(self, *_: object) -> None:
        """Also for whoever came while the work before was about to end."""
        if self._viewers and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(self._run())
            self._work.add_done_callback(self._start)

    async def _run(self) -> None:
        def attach(engine: Engine) -> Feed:
            feed = Feed(
                engine,
                model=self._model,
                block_bytes=self._block_bytes,
                decode=self._decode,
                misses=self._misses,
            )
            feed.attach()
            return feed

        feed: Feed | None = None
        try:
            feed = await self._call(attach)
            now = asyncio.get_running_loop().time
            last = now()
            while self._viewers or now() - last < self._linger:
                if self._viewers:
                    last = now()
                cost = await self._round(feed)
                await asyncio.sleep(max(self._interval, min(cost / SHARE, MAX_INTERVAL)))
        except LooseleafError as error:
            logger.info("the studio's feed ends: %s", error)
        except Exception:
            logger.exception("the studio's feed failed")
        finally:
            self._ring.clear()
            for viewer in list(self._viewers):
                self._let_go(viewer)
            if feed is not None:
                await self._detach(feed)

    async def _round(self, feed: Feed) -> float:
        """One delta; returns how long the engine, or others of its process, waited for it."""
        new = [viewer for viewer in self._viewers if viewer.new]
        wanted = bool(new) or self._ring.wants_snapshot

        def gather(_: Engine) -> tuple[Gathered, float]:
            start = time.thread_time()
            return feed.gather(snapshot=wanted), time.thread_time() - start

        gathered, cost = await self._call(gather)
        # Once for all, and neither in the engine's thread nor in this one: it may be megabytes.
        encoded = await asyncio.to_thread(_encoded, gathered)
        delta, snapshot, lost = encoded.delta, encoded.snapshot, encoded.lost
        if delta is not None:
            self._ring.add(delta)
            for viewer in [viewer for viewer in self._viewers if not viewer.new]:
                self._tell(viewer, delta)
        if snapshot is not None:
            if lost:
                self._ring.clear()
            if self._ring.wants_snapshot:
                self._ring.begin(snapshot)
            for viewer in list(self._viewers) if lost else new:
                self._tell(viewer, snapshot)
        # What is told once to whoever comes is no reason to tell all less.
        return 0.0 if wanted else cost + encoded.seconds

    def _tell(self, viewer: "_Viewer", frame: bytes) -> None:
        viewer.new = False
        try:
            viewer.frames.put_nowait(frame)
        except asyncio.QueueFull:
            logger.info("a viewer of the studio is too slow, and is let go")
            self._let_go(viewer)

    def _let_go(self, viewer: "_Viewer") -> None:
        self._viewers.pop(viewer, None)
        if viewer.frames.full():
            viewer.frames.get_nowait()
        viewer.frames.put_nowait(None)

    async def _detach(self, feed: Feed) -> None:
        def detach(_: Engine) -> None:
            feed.detach()

        with suppress(LooseleafError):  # the engine has ended, and the feed with it
            await self._call(detach)


class _Encoded(NamedTuple):
    delta: bytes | None
    snapshot: bytes | None
    lost: bool
    seconds: float


def _encoded(gathered: Gathered) -> _Encoded:
    start = time.thread_time()
    delta, snapshot, lost = gathered.news()
    return _Encoded(
        None if delta is None else encode(delta),
        None if snapshot is None else encode(snapshot),
        lost,
        time.thread_time() - start,
    )


class _Viewer:
    """`new` until it has its snapshot, which may be among the frames `before`; after that, None in
    `frames` is the end."""

    def __init__(self, max_waiting: int, before: list[bytes]) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(max_waiting)
        self.before = before
        self.new = not before
