"""Requests for a replay: when each comes, and what it asks for."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.engine.beams import BeamSearch
from looseleaf.engine.engine import Engine
from looseleaf.planner.trace_types import TraceRequest
from looseleaf.sampling.params import SamplingParams


class Player(Protocol):
    """What can be asked of a replay."""

    engine: Engine

    def add(self, request: Request) -> None:
        """Queue it, or note that it can never fit."""

    def search(self, search: BeamSearch) -> None:
        """Begin it."""

    def end(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request, if it has not ended."""

    def cancel(self, name: str) -> None:
        """End a beam search, if it has not ended."""


class Event(NamedTuple):
    """`act` is called when the time has come: a request's tokens take memory from then on."""

    time: float
    act: Callable[[Player], None]


def arrival(time: float, make: Callable[[], Request]) -> Event:
    return Event(time, lambda player: player.add(make()))


def poisson(requests: Iterable[TraceRequest], rate: float, seed: int = 0) -> Iterator[TraceRequest]:
    """The same requests in the same order, at random times: `rate` of them a second on average."""
    rng = random.Random(seed)
    now = 0.0
    for request in requests:
        yield request._replace(arrival=now)
        now += rng.expovariate(rate)


def arrivals(requests: Iterable[TraceRequest], *, hashed_tokens: int) -> Iterator[Event]:
    """Of requests in the order of their times, which all must have. They end after exactly the
    tokens of the trace."""
    known: dict[int, SamplingParams] = {}
    for index, request in enumerate(requests):
        length = request.num_output_tokens
        params = known.get(length)
        if params is None:
            params = known[length] = SamplingParams(max_tokens=length, ignore_eos=True, seed=0)
        time = request.arrival
        assert time is not None
        yield arrival(time, _maker(request, index, time, params, hashed_tokens))


def _maker(
    request: TraceRequest, index: int, time: float, params: SamplingParams, hashed_tokens: int
) -> Callable[[], Request]:
    def make() -> Request:
        prompt = prompt_tokens(request, index, hashed_tokens)

        def sample(number: int, children: tuple[Request, ...] = ()) -> Request:
            return Request(
                RequestId(f"{index}/{number}"),
                prompt,
                params,
                arrival_time=time,
                sample_index=number,
                children=children,
            )

        return sample(0, tuple(sample(i) for i in range(1, request.num_samples)))

    return make


def prompt_tokens(request: TraceRequest, index: int, hashed_tokens: int) -> Sequence[int]:
    """Tokens that are equal to another prompt's exactly where the trace says so. Where it has no
    hashes (any more), they are those of the request `index` alone.

    Hashes are even tokens and requests odd ones, so that the two never look alike; all are
    positive, which a `PlannedExecutor`'s are not.
    """
    tokens: list[int] = []
    for hash_id in request.hash_ids:
        tokens += [2 * hash_id] * hashed_tokens
    num_missing = request.num_prompt_tokens - len(tokens)
    if num_missing < 0:
        del tokens[num_missing:]
    elif num_missing > 0:
        tokens += [2 * index + 1] * num_missing
    return tokens
