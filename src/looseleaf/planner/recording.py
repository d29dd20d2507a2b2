"""A recording of an engine (`looseleaf serve --record`), read back: to be replayed exactly, or as a
workload for another machine."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from looseleaf.core.errors import LooseleafError
from looseleaf.core.step import Step, StepResult
from looseleaf.engine import journal
from looseleaf.engine.beams import BeamSearch
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.replay import Replay, planned_scheduler
from looseleaf.planner.workload import Event, Player
from looseleaf.text.tokenizer import Tokenizer


class RecordingError(LooseleafError):
    """A file that is no recording, or one of a version that is not known."""


class RecordingEnded(LooseleafError):
    """A step that is not recorded any more, or not at this place."""


class Recording(NamedTuple):
    """What was asked and what was computed, each in the order of time."""

    settings: EngineSettings
    memory: MemoryPlan
    asked: tuple[journal.Asked, ...]
    steps: tuple[journal.Stepped, ...]


def read_recording(path: Path) -> Recording:
    """Raises RecordingError for a file that is none. The last line may be cut off, as it is where
    a server was killed."""
    lines = path.read_bytes().split(b"\n")
    try:
        header = msgspec.json.decode(lines[0], type=journal.Header)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path} is no recording: {error}") from None
    if header.version != journal.VERSION:
        raise RecordingError(
            f"{path} is a recording of version {header.version}, but this looseleaf reads "
            f"{journal.VERSION}: record again"
        )
    decoder = msgspec.json.Decoder(journal.Line)
    asked: list[journal.Asked] = []
    steps: list[journal.Stepped] = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise RecordingError(f"{path}, line {number}: {error}") from None
        if isinstance(entry, journal.Stepped):
            steps.append(entry)
        else:
            asked.append(entry)
    try:
        settings = EngineSettings(**header.settings)
    except TypeError as error:
        raise RecordingError(f"{path}: its settings are not understood: {error}") from None
    return Recording(settings, header.memory, tuple(asked), tuple(steps))


class RecordedExecutor:
    """Implements `TimedExecutor`: each step begins and ends when it did, with what it gave."""

    def __init__(self, steps: Sequence[journal.Stepped], clock: VirtualClock) -> None:
        self.clock = clock
        self._steps = iter(steps)
        self._next = next(self._steps, None)

    def start_time(self) -> float:
        return self.clock.now if self._next is None else self._next.start

    def execute(self, step: Step) -> StepResult:
        """Raises RecordingEnded for a step that was not recorded."""
        recorded = self._next
        if recorded is None or recorded.result.step_id != step.step_id:
            raise RecordingEnded(f"step {step.step_id} is not in the recording at this place")
        self._next = next(self._steps, None)
        self.clock.wait_until(recorded.end)
        return recorded.result

    def read_block(self, block_id: int) -> bytes:
        return b""

    def write_block(self, block_id: int, data: bytes) -> None:
        raise ValueError("what is recorded has no blocks")

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def exact_replay(recording: Recording) -> Replay:
    """A replay that decides, on `events` of the recording, what its engine decided."""
    scheduler = planned_scheduler(recording.settings, recording.memory)
    executor = RecordedExecutor(recording.steps, VirtualClock())
    replay = Replay(scheduler, executor)
    replay.engine.floor_blocks = recording.memory.floor_blocks
    return replay


def events(recording: Recording, tokenizer: Tokenizer | None) -> Iterator[Event]:
    """What was asked, at its times. The tokenizer is for beam searches with stop strings, which
    raise RecordingError where there is none."""
    for asked in recording.asked:
        yield Event(asked.time, _Act(asked, tokenizer))


class _Act:
    def __init__(self, asked: journal.Asked, tokenizer: Tokenizer | None) -> None:
        self._asked = asked
        self._tokenizer = tokenizer

    def __call__(self, player: Player) -> None:
        match self._asked:
            case journal.Added(time, request):
                player.add(request.request(time))
            case journal.Searched() as found:
                if self._tokenizer is None and found.params.stop:
                    raise RecordingError(
                        "the recording has beam searches with stop strings, which need the model's "
                        "tokenizer"
                    )
                search = BeamSearch(
                    player.engine,
                    found.name,
                    found.token_ids,
                    found.params,
                    found.end_token_ids,
                    cast(Tokenizer, self._tokenizer),  # without stop strings it is not asked
                    found.priority,
                    found.extra_keys,
                )
                player.search(search)
            case journal.Ended(_, request_id, reason):
                player.end(request_id, reason)
            case journal.Cancelled(_, name):
                player.cancel(name)
            case journal.CacheForgotten():
                player.engine.forget_cache()
            case journal.Trimmed():
                player.engine.trim()
