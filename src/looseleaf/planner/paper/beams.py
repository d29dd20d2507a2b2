"""Beam search without a model: beams descend from each other as a real model's did.

A planner's usual outputs are all alike, which is right where only lengths count. Beams share what
they have in common, and how much that is depends on how often one of them ousts another. So the
places of all parents were recorded, step by step, from searches of SmolLM2-135M over 36
instructions, for 400 or 800 tokens (benchmarks/beam_ancestry.py), and here log-probabilities are
such that the same parents are chosen again. Longer searches go on with the record of the next one.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from looseleaf.core.step import Sample, TokenLogprobs, Update
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.engine import Engine
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.trace_types import TraceRequest
from looseleaf.planner.workload import Event, prompt_tokens
from looseleaf.text.tokenizer import Tokenizer

_FILE = Path(__file__).parents[1] / "data" / "beams.json"

_STEP = 1e-3
"""Between the scores of two neighbours, of beams that all lose 1 with each token."""

_UNLIKELY = -1000.0


@cache
def recorded_parents(width: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Of searches of this width: for each step the parent's place of every new beam. In the first,
    all descend from the prompt. Raises KeyError for a width that was not recorded."""
    with _FILE.open(encoding="utf-8") as file:
        searches = json.load(file)["parents"][str(width)]
    return tuple(tuple(_steps(search, width)) for search in searches)


def _steps(search: str, width: int) -> Iterator[tuple[int, ...]]:
    for word in search.split():
        if word.startswith("="):
            yield from [tuple(range(width))] * int(word[1:])
        else:
            yield tuple(map(int, word))


def parents_at(width: int, search: int, step: int) -> tuple[int, ...]:
    """Of the beams that step `step` makes, counted from 0, in one of many searches."""
    searches = recorded_parents(width)
    if step == 0:
        return searches[search % len(searches)][0]
    place = step - 1
    while True:
        steps = searches[search % len(searches)]
        if place < len(steps) - 1:
            return steps[place + 1]
        place -= len(steps) - 1
        search += 1


def moved_share(width: int) -> float:
    """Of the beams that a step makes: those whose parent has another place than they take."""
    steps = [step for search in recorded_parents(width) for step in search[1:]]
    moved = sum(parent != place for step in steps for place, parent in enumerate(step))
    return moved / (len(steps) * width)


class RecordedBeamsExecutor(PlannedExecutor):
    """Implements `Executor` for searches of `Searches`. Of their steps, beams oust each other in
    every `every`-th only."""

    def __init__(self, times: StepTimes, clock: VirtualClock, every: int = 1) -> None:
        super().__init__(times, clock)
        self._every = every

    def likely(self, token: int, sample: Sample) -> TokenLogprobs | None:
        found = super().likely(token, sample)
        if found is None:
            return None
        # The first beam is number 0; after that every step makes `width` of them, in order.
        search, _, number = sample.request_id.removeprefix("search-").partition("/beam-")
        width = len(found.top) // 2
        made, place = divmod(int(number) - 1, width) if int(number) else (-1, 0)
        step = made + 1
        alone = step > 0 and step % self._every
        parents = tuple(range(width)) if alone else parents_at(width, int(search), step)
        children = [child for child, parent in enumerate(parents) if parent == place]
        logprobs = [-1 - _STEP * (child - place) for child in children]
        logprobs += [_UNLIKELY] * (len(found.top) - len(logprobs))
        top = tuple((one, logprob) for (one, _), logprob in zip(found.top, logprobs, strict=True))
        return TokenLogprobs(logprobs[0], top)


class TimedSearch(BeamSearch):
    """Knows when it ended, in seconds on the engine's clock."""

    ended: float | None = None

    def update(self, updates: Sequence[Update]) -> None:
        super().update(updates)
        if self.finished and self.ended is None:
            self.ended = self.engine.clock()


class Searches:
    """Requests that all come at the beginning, each as a search of the same width."""

    def __init__(self, requests: Sequence[TraceRequest], width: int) -> None:
        self._requests = requests
        self._width = width
        self.started: list[TimedSearch] = []

    def events(self) -> list[Event]:
        return [
            Event(0.0, lambda player, i=i: player.search(self._search(player.engine, i)))  # type: ignore[misc]
            for i in range(len(self._requests))
        ]

    def _search(self, engine: Engine, index: int) -> TimedSearch:
        request = self._requests[index]
        search = TimedSearch(
            engine,
            f"search-{index}",
            prompt_tokens(request, index, 0),
            BeamSearchParams(
                beam_width=self._width, max_tokens=request.num_output_tokens, ignore_eos=True
            ),
            frozenset(),
            cast(Tokenizer, None),  # without stop strings it is not asked
        )
        self.started.append(search)
        return search
