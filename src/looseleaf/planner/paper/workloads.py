"""Requests like those of the paper, of which only mean lengths are printed.

Lengths are drawn from gamma distributions with these means, prompt and output by themselves. Their
spread is not printed. ShareGPT's outputs have one that Fig. 2 tells: of Orca (Max), seven requests
of 15,728 slots, 13.3% are still to be filled, so `E[output^2] / E[output]` is twice 299 tokens, a
coefficient of variation of 0.88. (The same figure's token states then ask for prompts of 159 tokens
on average: so prompts do not depend on outputs.) Alpaca's prompts are instructions of a sentence or
two, and vary as the sentences below do. All others are exponential, which is the least that a mean
says; with it Orca (Oracle) and (Pow2) run as many of Alpaca's at once as in Fig. 13. Draws are
stratified (one from each of as many parts of the distribution as there are requests), so that some
hundreds have the means of thousands. What does not fit into a context of 2,048 tokens is drawn
again.

Sentences to be translated (WMT16 English-German) are assumed to have 30 tokens, and 45 when
translated, each with a coefficient of variation of 0.6.
"""

import itertools
import random
from typing import NamedTuple

from looseleaf.planner.paper.published import MEAN_LENGTHS
from looseleaf.planner.trace_types import TraceRequest

CONTEXT = 2048
CHAT_TOKENS = 1024
"""Section 6.5: the most of a conversation that is the prompt, and the most of an answer."""


_FINENESS = 17
"""Draws of which the middle one stands for a stratum."""


class Spread(NamedTuple):
    """Of lengths, in tokens; `variation` is their standard deviation over their mean."""

    mean: float
    variation: float

    def draw(self, rng: random.Random) -> int:
        shape = self.variation**-2
        return max(1, round(rng.gammavariate(shape, self.mean / shape)))

    def draw_strata(self, rng: random.Random, count: int) -> list[int]:
        """In any order."""
        ordered = sorted(self.draw(rng) for _ in range(count * _FINENESS))
        drawn = ordered[_FINENESS // 2 :: _FINENESS]
        rng.shuffle(drawn)
        return drawn


SENTENCES = 0.6
"""The variation of lengths of what is a sentence, or a few."""

LENGTHS = {
    "ShareGPT": (Spread(MEAN_LENGTHS["ShareGPT"][0], 1), Spread(MEAN_LENGTHS["ShareGPT"][1], 0.88)),
    "Alpaca": (
        Spread(MEAN_LENGTHS["Alpaca"][0], SENTENCES),
        Spread(MEAN_LENGTHS["Alpaca"][1], 1),
    ),
    "WMT16": (Spread(30, SENTENCES), Spread(45, SENTENCES)),
    "WMT16, longer": (Spread(60, SENTENCES), Spread(120, SENTENCES)),
}


def draw(name: str, num_requests: int, seed: int, num_samples: int = 1) -> list[TraceRequest]:
    """Requests without times, each of so many samples that are all as long."""
    prompt, output = LENGTHS[name]
    rng = random.Random(f"{name} {seed}")
    found = []
    prompts, outputs = (one.draw_strata(rng, num_requests) for one in (prompt, output))
    for num_prompt, num_output in zip(prompts, outputs, strict=True):
        while num_prompt + num_output > CONTEXT:
            num_prompt, num_output = prompt.draw(rng), output.draw(rng)
        found.append(TraceRequest(0.0, num_prompt, num_output, (), num_samples))
    return found


def translations(
    num_requests: int, seed: int, prefix: int, lengths: str = "WMT16"
) -> list[TraceRequest]:
    """Sentences behind one prefix, which is the first and only hash, of `prefix` tokens."""
    return [
        r._replace(num_prompt_tokens=prefix + r.num_prompt_tokens, hash_ids=(0,))
        for r in draw(lengths, num_requests, seed)
    ]


def chats(num_requests: int, seed: int, rounds: int | None = None) -> list[TraceRequest]:
    """Long conversations: every prompt has as many tokens as it may, which the paper says of most
    of them. Or the last tokens of up to so many `rounds`, any number of them equally often."""
    rng = random.Random(f"chats {seed}")
    history = itertools.cycle(draw("ShareGPT", num_requests, seed + 1))
    found = []
    for request in draw("ShareGPT", num_requests, seed):
        num_prompt = CHAT_TOKENS
        if rounds is not None:
            before = itertools.islice(history, rng.randrange(rounds))
            said = sum(r.num_prompt_tokens + r.num_output_tokens for r in before)
            num_prompt = min(CHAT_TOKENS, said + request.num_prompt_tokens)
        num_output = min(CHAT_TOKENS, request.num_output_tokens)
        found.append(request._replace(num_prompt_tokens=num_prompt, num_output_tokens=num_output))
    return found
