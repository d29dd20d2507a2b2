"""What a request may ask for: how to draw tokens, and when to stop."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looseleaf.core.errors import LooseleafError

MAX_SEED = 2**63 - 1
MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """What the output must be: exactly one of these.

    `json` is a JSON schema, as text or as a mapping; `json_object` any JSON object; `regex` and
    `choice` match the whole output; `grammar` is in Lark's notation.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        asked = [name for name in self.__slots__ if getattr(self, name) not in (None, False)]
        if len(asked) != 1:
            raise LooseleafError(
                f"structured_outputs has {' and '.join(asked) or 'nothing'}, but it must have one "
                f"of {', '.join(self.__slots__)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What to sample and when to stop.

    `temperature` 0 is greedy, and so is `top_p` 0; `top_k` 0 or -1, `top_p` 1 and `min_p` 0 are
    off. `presence_penalty` and `frequency_penalty` count what was generated, and
    `repetition_penalty` (1 is off) the prompt too; `logit_bias` is added to the logits of ids, and
    may be given as a mapping. Only `allowed_token_ids`, if there are any, can be drawn, and never
    the last token that would complete one of `bad_words`, however it is spelt after a space or
    without; `bad_words_token_ids` are the same as token ids. With `structured_outputs` the output
    follows a grammar, which `grammar` is for llguidance. `edits.py` says how these change logits.

    `max_tokens` None means up to the context; 0 only scores the prompt. Before `min_tokens` nothing
    stops: no end token is drawn, no stop string looked for. `logprobs` k returns, for each token,
    its own log-probability and the k most likely (raw log-softmax, whatever the rest);
    `prompt_logprobs` returns each prompt token's own, and the `prompt_top_logprobs` most likely.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: bool = False
    prompt_top_logprobs: int = 0
    lists_drawable: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(sorted(self.logit_bias.items())))
        temperature, logprobs, allowed = self.temperature, self.logprobs, self.allowed_token_ids
        biases = [bias for _, bias in self.biases]
        most = math.inf if self.max_tokens is None else self.max_tokens
        for name, holds, rule in (
            ("n", 1 <= self.n <= 128, "between 1 and 128"),
            ("temperature", 0 <= temperature < math.inf, "a finite number of at least 0"),
            ("top_k", self.top_k >= -1, "at least 1, or 0 or -1 for off"),
            ("top_p", 0 <= self.top_p <= 1, "between 0 and 1 (1 is off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1 (0 is off)"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            (
                "repetition_penalty",
                0 < self.repetition_penalty < math.inf,
                "a finite number above 0 (1 is off)",
            ),
            (
                "logit_bias",
                all(abs(bias) <= MAX_BIAS for bias in biases),
                f"token ids with numbers between -{MAX_BIAS:g} and {MAX_BIAS:g}",
            ),
            ("allowed_token_ids", allowed is None or allowed, "None, or at least one id"),
            ("bad_words", all(self.bad_words), "a list of strings that are not empty"),
            ("bad_words_token_ids", all(self.bad_words_token_ids), "lists of at least one id"),
            ("seed", 0 <= (self.seed or 0) <= MAX_SEED, "between 0 and 2**63-1, or None"),
            ("max_tokens", (self.max_tokens or 0) >= 0, "at least 0, or None"),
            ("min_tokens", 0 <= self.min_tokens <= most, f"between 0 and max_tokens ({most})"),
            ("stop", all(self.stop), "a list of strings that are not empty"),
            ("logprobs", 0 <= (logprobs or 0) <= 20, "between 0 and 20, or None"),
            (
                "prompt_top_logprobs",
                0 <= self.prompt_top_logprobs <= (20 if self.prompt_logprobs else 0),
                "between 0 and 20, and 0 without prompt_logprobs",
            ),
        ):
            if not holds:
                raise LooseleafError(
                    f"{name} is {_told(getattr(self, name))}, but it must be {rule}"
                )

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as it is kept."""
        return tuple(self.logit_bias)  # type: ignore[arg-type]

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    @property
    def needs_history(self) -> bool:
        """Whether what can be drawn depends on the tokens before, not on the logits alone."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or any(len(word) > 1 for word in self.bad_words_token_ids)
            or self.grammar is not None
        )

    @property
    def takes_drafts(self) -> bool:
        """Whether several tokens can be drawn at once, from the logits after guesses."""
        return not (self.needs_history or self.prompt_logprobs)

    @property
    def takes_forced_tokens(self) -> bool:
        """Whether tokens that its grammar leaves no choice about may come without being drawn:
        nobody asks how likely they were, and nothing else forbids them."""
        return (
            self.grammar is not None
            and self.logprobs is None
            and self.allowed_token_ids is None
            and not self.bad_words_token_ids
        )

    @property
    def edits_logits(self) -> bool:
        return bool(
            self.needs_history
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.bad_words_token_ids
        )


def _told(value: Any) -> str:
    """A collection by its size: it may be long, and of a client's words."""
    return f"a list of {len(value)}" if hasattr(value, "__len__") else repr(value)
