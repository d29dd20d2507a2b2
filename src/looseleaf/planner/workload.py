"""Requests for a replay: when each comes, and what it asks for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from looseleaf.core.request import Request, RequestId
from looseleaf.planner.trace import TraceRequest
from looseleaf.sampling.params import SamplingParams

HASHED_TOKENS = 512
"""Of a prompt, by each entry of a Mooncake trace's `hash_ids`."""


class Arrival(NamedTuple):
    """`make` is called when the time has come: a request's tokens take memory from then on."""

    time: float
    make: Callable[[], Request]


def arrivals(
    requests: Iterable[TraceRequest], *, hashed_tokens: int = HASHED_TOKENS
) -> Iterator[Arrival]:
    """Of requests in the order of their times. They end after exactly the tokens of the trace."""
    params: dict[int, SamplingParams] = {}
    for index, request in enumerate(requests):
        length = request.num_output_tokens
        if length not in params:
            params[length] = SamplingParams(max_tokens=length, ignore_eos=True, seed=0)
        yield Arrival(request.arrival, _maker(request, index, params[length], hashed_tokens))


def _maker(
    request: TraceRequest, index: int, params: SamplingParams, hashed_tokens: int
) -> Callable[[], Request]:
    def make() -> Request:
        prompt = prompt_tokens(request, index, hashed_tokens)
        return Request(RequestId(f"{index}"), prompt, params, arrival_time=request.arrival)

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
