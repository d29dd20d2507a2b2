"""Lengths of requests, and mixes of them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from looseleaf.core.errors import ConfigError

_FORM = re.compile(r"(\d{1,9}):(\d{1,9})(?:x(\d*\.?\d+))?")


class Lengths(NamedTuple):
    """`share` says how many of a mix's requests are like this, against the others'."""

    num_prompt_tokens: int
    num_output_tokens: int
    share: float = 1.0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_stored(self) -> int:
        """At the end: the newest token is never stored."""
        return self.num_tokens - 1

    def __str__(self) -> str:
        return f"{self.num_prompt_tokens}:{self.num_output_tokens}"


def parse_lengths(text: str) -> Lengths:
    """From "1000:200", tokens of prompt and output, or "1000:200x0.3" with a share of the mix.
    Raises ConfigError."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"requests {text[:40]!r} are not understood: write tokens as PROMPT:OUTPUT, like "
            "1000:200, or 1000:200x0.3 for a share of a mix"
        )
    lengths = Lengths(int(match[1]), int(match[2]), float(match[3] or 1))
    if not (lengths.num_prompt_tokens and lengths.num_output_tokens and lengths.share):
        raise ConfigError(f"requests {text[:40]!r}: prompt, output and share must be above 0")
    return lengths


def quantile(mix: Sequence[Lengths], q: float) -> Lengths:
    """The request than which a share `q` of the mix is no longer, in tokens in all."""
    ordered = sorted(mix, key=lambda lengths: lengths.num_tokens)
    wanted = q * sum(lengths.share for lengths in mix)
    reached = 0.0
    for lengths in ordered:
        reached += lengths.share
        if reached >= wanted * (1 - 1e-12):
            return lengths
    return ordered[-1]


def mean_tokens(mix: Sequence[Lengths]) -> float:
    """Of a request of the mix, prompt and output together."""
    return sum(one.share * one.num_tokens for one in mix) / sum(one.share for one in mix)
