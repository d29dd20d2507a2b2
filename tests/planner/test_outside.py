"""A cost model of a server from the times of its streams."""

import random

import pytest

from looseleaf.planner.calibrate import Observation
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.planner.outside import calibrate_outside, observations, outside_loads
from looseleaf.planner.streams import OutsideError, OutsideServer, Stream

CHUNK = 512
REQUEST = 0.004


def truth(step: StepSummary) -> float:
    compute = 1e-3 * step.num_tokens + 4e-7 * step.decode_context + 2e-7 * step.pairs
    return 8e-3 + compute + 5e-4 * step.num_rows


def streams_of(seats: int, prompt: int, noise: random.Random) -> list[Stream]:
    """Of a server that computes the prompts one after the other, and then decodes them all."""
    now, firsts = REQUEST, []
    for done in range(seats):
        for start in range(0, prompt, CHUNK):
            parts = [StepPart(min(CHUNK, prompt - start), start)]
            last = start + CHUNK >= prompt
            step = summarize(parts + [StepPart(1, prompt)] * done)
            now += truth(step._replace(num_rows=done + last))
        firsts.append(now)
    times = [[first] for first in firsts]
    for i in range(31):
        now += truth(summarize([StepPart(1, prompt + i)] * seats)) * noise.gauss(1, 0.01)
        for one in times:
            one.append(now)
    return [Stream(tuple(one), prompt, 32) for one in times]


def test_a_server_that_is_known_is_found() -> None:
    noise = random.Random(0)
    found: list[Observation] = []
    for number, (seats, prompt) in enumerate(outside_loads(64, 4096) * 2):
        found += observations(streams_of(seats, prompt, noise), number, CHUNK)
    model = calibrate_outside(found, "a server")
    for parts in ([(1, 300)] * 6, [(1, 100)] * 24, [(200, 0)], [(512, 512)]):
        summary = summarize([StepPart(*part) for part in parts])
        assert model.seconds_of(summary) == pytest.approx(truth(summary), rel=0.05), parts
    assert model.measured["request_seconds"] == pytest.approx(REQUEST, abs=0.002)
    residuals = model.measured["residuals"]
    assert residuals.keys() == {"prefill", "decode"}
    assert all(one["median"] < 0.03 for one in residuals.values())


def test_pieces_with_several_tokens_are_not_faster_steps() -> None:
    plain = Stream(tuple(0.1 + 0.01 * i for i in range(32)), 10, 32)
    pairs = Stream(tuple(0.1 + 0.02 * i for i in range(16)), 10, 32)
    for stream in (plain, pairs):
        first, later = observations([stream], 0, CHUNK)
        assert (first.kind, first.seconds) == ("prefill", 0.1)
        assert (later.kind, later.seconds) == ("decode", pytest.approx(0.01))


def test_answers_that_hardly_meet_tell_nothing() -> None:
    early = Stream((0.1, 0.2, 0.3), 10, 3)
    late = Stream((0.29, 0.4, 0.5), 10, 3)
    assert observations([early, late], 0, CHUNK) == []


def test_loads_fit_into_the_server() -> None:
    assert max(load.at_once for load in outside_loads(8, 4096)) == 8
    assert max(load.num_prompt_tokens for load in outside_loads(8, 500)) == 200
    assert outside_loads(8, 16) == []


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "no url"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(OutsideError, match="--url"):
        OutsideServer(url)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(OutsideError, match="cannot be reached"):
        OutsideServer("http://127.0.0.1:9/v1").models()
