"""What a planned engine does, recorded for the studio: the same feed, on the virtual clock."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.engine import Engine
from looseleaf.engine.meter import Meter
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import encode
from looseleaf.studio.hub import INTERVAL
from looseleaf.studio.recording import Recorder, set_aside

logger = logging.getLogger(__name__)


class PlanRecorder:
    """Writes a frame each `INTERVAL` of virtual time to `path`, and begins anew when it is full, as
    `Recorder` says. Raises LooseleafError where that fails."""

    def __init__(self, path: Path, limit: int, *, model: str, block_bytes: int) -> None:
        self._path, self._limit = path, limit
        self._model, self._block_bytes = model, block_bytes
        self._recorder = self._open()

    def watch(self, engine: Engine) -> Callable[[], None]:
        """Begin with an engine that has done nothing yet. What comes back is to be called after
        each of its steps."""
        feed = Feed(
            engine,
            model=self._model,
            block_bytes=self._block_bytes,
            misses=Meter(engine).misses,
        )
        feed.attach()
        self._snapshot(feed)
        next_time = engine.clock()

        def stepped() -> None:
            nonlocal next_time
            now = engine.clock()
            # Before nothing happens for a while, what has happened is told.
            if now < next_time and engine.has_work:
                return
            next_time = now + INTERVAL
            delta = feed.collect().delta
            if delta is None:
                return
            self._write(encode(delta))
            if self._recorder.full:
                self._begin_anew(feed)

        return stepped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.close()

    def _begin_anew(self, feed: Feed) -> None:
        self._recorder.close()
        before = set_aside(self._path)
        logger.info("the recording goes on in a new %s; %s is before it", self._path, before)
        self._recorder = self._open()
        self._snapshot(feed)

    def _snapshot(self, feed: Feed) -> None:
        snapshot = feed.collect(snapshot=True).snapshot
        assert snapshot is not None
        self._write(encode(snapshot))

    def _write(self, frame: bytes) -> None:
        try:
            self._recorder.write(frame)
        except OSError as error:
            raise self._problem(error) from error

    def _open(self) -> Recorder:
        try:
            return Recorder(self._path, self._limit)
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> LooseleafError:
        return LooseleafError(f"cannot write {self._path}: {error.strerror or error}")
