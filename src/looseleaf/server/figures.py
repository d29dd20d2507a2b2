"""Times and tokens of one request, for those who ask it of its answer and for the log."""

from msgspec import Struct


class MissFigures(Struct, kw_only=True):
    """From token `position` of the prompt on, `tokens` were computed that might have been found in
    the KV cache. The first of them was not because of `reason`: `first_seen` (nothing is stored, or
    the prompt goes on where that ends), `diverged` (others went on differently there), `evicted`,
    `salted` (it is stored without the cache_salt), `too_short` (a prompt of one token), `logprobs`
    (those of the prompt were asked for), `disabled`."""

    reason: str
    position: int
    tokens: int


class RequestFigures(Struct, kw_only=True):
    """Milliseconds from the arrival to the first step, from there to the first token, from there
    to the last, and in all; of several prompts the longest. Tokens and preemptions are those of
    all. `prefix_misses` has one for each prompt: null if all of it was found that could be."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    prefix_misses: list[MissFigures | None]


class Timings(Struct, kw_only=True):
    """As llama-server has them: tokens of the prompt found stored, computed, and generated."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
