"""Everything that is asked of an engine and every step that it computes, as lines of a file.

A planner that is given the same again decides the same, step for step: only what comes from outside
is written, and what an executor answers. Prompts and answers are in it as token ids, so it is as
private as they are.
"""

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from looseleaf.core.errors import ConfigError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.core.step import StepResult
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.sampling.params import SamplingParams

if TYPE_CHECKING:
    from looseleaf.engine.engine import Engine

logger = logging.getLogger(__name__)

VERSION = 1


class Header(msgspec.Struct, tag="looseleaf", frozen=True):
    """The first line. Times in all others are seconds since it was written."""

    version: int
    settings: dict[str, Any]
    memory: MemoryPlan


class AskedRequest(msgspec.Struct, frozen=True):
    """A request as it was added. `children` have its prompt."""

    request_id: RequestId
    token_ids: list[int]
    params: SamplingParams
    priority: int
    extra_keys: ExtraKeys
    stop_token_ids: frozenset[int]
    sample_index: int
    takes_drafts: bool
    children: tuple["AskedRequest", ...] = ()

    def request(self, time: float, token_ids: list[int] | None = None) -> Request:
        """One like it, which comes at `time`."""
        prompt = self.token_ids if token_ids is None else token_ids
        return Request(
            self.request_id,
            prompt,
            self.params,
            arrival_time=time,
            priority=self.priority,
            extra_keys=self.extra_keys,
            stop_token_ids=self.stop_token_ids,
            sample_index=self.sample_index,
            takes_drafts=self.takes_drafts,
            children=tuple(child.request(time, prompt) for child in self.children),
        )


class Added(msgspec.Struct, tag="add", frozen=True):
    time: float
    request: AskedRequest


class Searched(msgspec.Struct, tag="search", frozen=True):
    """A beam search has begun."""

    time: float
    name: str
    token_ids: list[int]
    params: BeamSearchParams
    end_token_ids: frozenset[int]
    priority: int
    extra_keys: ExtraKeys


class Ended(msgspec.Struct, tag="end", frozen=True):
    """A request was ended from outside."""

    time: float
    request_id: RequestId
    reason: FinishReason


class Cancelled(msgspec.Struct, tag="cancel", frozen=True):
    """A beam search was ended from outside."""

    time: float
    name: str


class CacheForgotten(msgspec.Struct, tag="forget", frozen=True):
    time: float


class Trimmed(msgspec.Struct, tag="trim", frozen=True):
    """Memory was given back while there was nothing to do."""

    time: float


class Stepped(msgspec.Struct, tag="step", frozen=True):
    """A step was scheduled at `start` and computed at `end`."""

    start: float
    end: float
    result: StepResult


Asked = Added | Searched | Ended | Cancelled | CacheForgotten | Trimmed
Line = Asked | Stepped


class Journal:
    """Writes what its engine tells it. If that fails, it says so once and writes no more: nobody
    who is served has to suffer for it."""

    def __init__(
        self, path: Path, engine: "Engine", settings: EngineSettings, memory: MemoryPlan
    ) -> None:
        """Raises ConfigError for what could not be replayed, or if the file cannot be written."""
        for name in ("swap_space", "kv_disk", "pin_budget"):
            if getattr(settings, name):
                raise ConfigError(
                    f"what is recorded with {name} cannot be replayed: leave one of them out"
                )
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._clock = engine.clock
        self._start = engine.clock()
        self._write(Header(VERSION, _as_given(settings), memory))
        engine.journal = self

    def added(self, request: Request) -> None:
        self._write(Added(self._now(), _asked(request)))

    def searched(self, search: BeamSearch) -> None:
        self._write(
            Searched(
                self._now(),
                search.name,
                list(search.prompt_token_ids),
                search.params,
                search.end_token_ids,
                search.priority,
                search.extra_keys,
            )
        )

    def ended(self, request_id: RequestId, reason: FinishReason) -> None:
        self._write(Ended(self._now(), request_id, reason))

    def cancelled(self, search: BeamSearch) -> None:
        self._write(Cancelled(self._now(), search.name))

    def forgot(self) -> None:
        self._write(CacheForgotten(self._now()))

    def trimmed(self) -> None:
        self._write(Trimmed(self._now()))

    def stepped(self, start: float, result: StepResult) -> None:
        self._write(Stepped(start - self._start, self._now(), result))

    def close(self) -> None:
        """Closing it again does nothing."""
        self._file.close()

    def _now(self) -> float:
        return self._clock() - self._start

    def _write(self, line: Header | Line) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(self._encoder.encode(line) + b"\n")
        except OSError as error:
            logger.error("no more is recorded: %s cannot be written: %s", self._path, error)
            self._give_up()

    def _give_up(self) -> None:
        try:
            self._file.close()
        except OSError:
            return  # what was left to write; the file is closed all the same


def _as_given(settings: EngineSettings) -> dict[str, Any]:
    """Without what says more of the machine than of its decisions."""
    return dataclasses.asdict(dataclasses.replace(settings, cache_dir=None))


def _asked(request: Request, *, as_child: bool = False) -> AskedRequest:
    return AskedRequest(
        request.request_id,
        [] if as_child else request.token_ids[: request.num_prompt_tokens],
        request.params,  # type: ignore[arg-type]  # the core knows only a part of them
        request.priority,
        request.extra_keys,
        request.stop_token_ids,
        request.sample_index,
        request.takes_drafts,
        tuple(_asked(child, as_child=True) for child in request.children),
    )
