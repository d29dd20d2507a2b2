"""A cost model of a running server, from the times of its streams alone.

Of a prompt that is served alone, the time to the first token is that of the steps that compute its
chunks; where several answers come at once, the time between two tokens is that of a step that
decodes them all. What a request takes besides, on its way and in the server, is one more number.
What cannot be seen from outside is left out: sharing, and what chunks cost beside their tokens.
"""

import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from looseleaf.planner.calibrate import Observation, fit
from looseleaf.planner.calibrated import NUM_INNER, CalibratedModel, features
from looseleaf.planner.cost_model import StepPart, StepSummary, summarize
from looseleaf.planner.streams import OutsideServer, Stream

PROMPTS = (4, 16, 64, 200, 500, 1200)
SEATS = (1, 2, 4, 8, 16, 32)
MOST_TOKENS = 3000
NUM_OUTPUT_TOKENS = 32
_FEW_WORDS = 16
FEWEST = 4
"""Pieces of each answer while all of a load's are coming: fewer tell no time between two."""


class OutsideLoad(NamedTuple):
    """So many requests at once, of about so many prompt tokens each."""

    at_once: int
    num_prompt_tokens: int


def outside_loads(max_num_seqs: int, max_model_len: int) -> list[OutsideLoad]:
    return [
        OutsideLoad(seats, prompt)
        for prompt in PROMPTS
        for seats in SEATS
        if seats <= max_num_seqs
        and 1.5 * prompt + NUM_OUTPUT_TOKENS <= max_model_len
        and seats * prompt <= max(prompt, MOST_TOKENS)
    ]


def observe(
    server: OutsideServer,
    model: str,
    given: Sequence[OutsideLoad],
    *,
    chunk_tokens: int,
    on_load: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> list[Observation]:
    """Time the streams of each load; the server computes at most `chunk_tokens` in a step. A first
    request tells how many tokens a word has here. Raises OutsideError."""
    rng = random.Random(seed)
    first = server.streams([_body(model, _FEW_WORDS, rng)])[0]
    words_each = _FEW_WORDS / first.num_prompt_tokens
    found: list[Observation] = []
    for number, load in enumerate(given):
        num_words = max(1, round(load.num_prompt_tokens * words_each))
        streams = server.streams([_body(model, num_words, rng) for _ in range(load.at_once)])
        found += observations(streams, number, chunk_tokens)
        on_load()
    return found


def _body(model: str, num_words: int, rng: random.Random) -> dict[str, object]:
    """Words that no other prompt begins with."""
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(num_words))
    return {
        "model": model,
        "prompt": " ".join(words),
        "max_tokens": NUM_OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


def observations(streams: Sequence[Stream], load: int, chunk_tokens: int) -> list[Observation]:
    """What the streams of one load say."""
    found = []
    if len(streams) == 1:
        first = streams[0]
        steps = _prefill(first.num_prompt_tokens, chunk_tokens)
        seen = [sum(column) for column in zip(*map(_seen, steps), strict=True)]
        found.append(Observation((*seen, 1.0), first.times[0], load, "prefill"))
    start = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    together = [[time for time in stream.times if start <= time <= end] for stream in streams]
    if min(map(len, together)) < FEWEST:
        return found
    gaps, context = [], 0.0
    for stream, times in zip(streams, together, strict=True):
        tokens_each = stream.num_output_tokens / len(stream.times)
        gaps.append((times[-1] - times[0]) / (len(times) - 1) / tokens_each)
        before = stream.times.index(times[0]) + len(times) / 2
        context += stream.num_prompt_tokens + before * tokens_each
    num = len(streams)
    step = StepSummary(num, num, round(context), round(context / num), 0, 0)
    found.append(Observation((*_seen(step), 0.0), median(gaps), load, "decode"))
    return found


def _prefill(num_tokens: int, chunk_tokens: int) -> list[StepSummary]:
    starts = range(0, num_tokens, chunk_tokens)
    steps = [summarize([StepPart(min(chunk_tokens, num_tokens - s), s)]) for s in starts]
    return [step._replace(num_rows=0) for step in steps[:-1]] + steps[-1:]


def _seen(step: StepSummary) -> list[float]:
    return features(step)[:-NUM_INNER] + [0.0] * NUM_INNER


def calibrate_outside(found: Sequence[Observation], server: str) -> CalibratedModel:
    """`measured["request_seconds"]` is what each request takes besides its steps."""
    fitted = fit(found)
    return CalibratedModel(
        coefficients=fitted.coefficients[:-1],
        measured={
            "machine": server,
            "num_steps": len(found),
            "residuals": fitted.residuals,
            "request_seconds": fitted.coefficients[-1],
        },
    )
