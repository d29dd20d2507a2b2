"""A request: its tokens, what it asked for, and how far it has come."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import StrEnum
from typing import NewType

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import BlockKey, ExtraKeys

RequestId = NewType("RequestId", str)

MAX_SEED = 2**63 - 1


class Status(StrEnum):
    WAITING = "waiting"
    HELD = "held"
    """Waiting for a running request that is computing a prefix this one shares."""
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What to sample and when to stop.

    `temperature` 0 is greedy, and so is `top_p` 0; `top_k` 0 or -1, `top_p` 1 and `min_p` 0 are
    off. `max_tokens` None means up to the context; 0 only scores the prompt. `logprobs` k returns,
    for each token, its own log-probability and the k most likely (raw log-softmax, whatever the
    temperature); `prompt_logprobs` returns each prompt token's own.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        temperature, logprobs = self.temperature, self.logprobs
        for name, holds, rule in (
            ("n", 1 <= self.n <= 128, "between 1 and 128"),
            ("temperature", 0 <= temperature < math.inf, "a finite number of at least 0"),
            ("top_k", self.top_k >= -1, "at least 1, or 0 or -1 for off"),
            ("top_p", 0 <= self.top_p <= 1, "between 0 and 1 (1 is off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1 (0 is off)"),
            ("seed", 0 <= (self.seed or 0) <= MAX_SEED, "between 0 and 2**63-1, or None"),
            ("max_tokens", (self.max_tokens or 0) >= 0, "at least 0, or None"),
            ("stop", all(self.stop), "a list of strings that are not empty"),
            ("logprobs", 0 <= (logprobs or 0) <= 20, "between 0 and 20, or None"),
        ):
            if not holds:
                raise LooseleafError(f"{name} is {getattr(self, name)!r}, but it must be {rule}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One sequence: the prompt, what was generated, and counters.

    `token_ids` is prompt and output in one list; `num_computed_tokens` counts those whose KV is
    stored, so the newest sampled token is in the first and not in the second. `children` are the
    further samples of the same prompt: each becomes a running request of its own once this one
    has computed the prompt for all of them.

    `stop_token_ids` are all ids that end it (the model's own end tokens included, unless ignored).
    """

    request_id: RequestId
    prompt_token_ids: InitVar[Sequence[int]]
    params: SamplingParams
    _: KW_ONLY
    arrival_time: float = 0.0
    priority: int = 0
    extra_keys: ExtraKeys = ()
    stop_token_ids: frozenset[int] = frozenset()
    sample_index: int = 0
    children: tuple["Request", ...] = ()

    # From here on kept by the scheduler.
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_total_tokens: int = field(default=0, init=False)
    arrival_index: int = field(default=0, init=False)
    parent_id: RequestId | None = field(default=None, init=False)
    """While it waits for its parent to compute the prompt."""
    status: Status = field(default=Status.WAITING, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_cached_tokens: int | None = field(default=None, init=False)
    """Found stored when it was first admitted; never changed after."""
    num_scored_tokens: int = field(default=1, init=False)
    """Prompt tokens whose log-probability was delivered; the first one has none."""
    num_preemptions: int = field(default=0, init=False)
    first_scheduled_time: float | None = field(default=None, init=False)
    first_token_time: float | None = field(default=None, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)

    # Hashed once and kept over every attempt to schedule; see hashing.py.
    root_key: BlockKey | None = field(default=None, init=False)
    block_keys: list[BlockKey] = field(default_factory=list, init=False)
    tail_key: BlockKey | None = field(default=None, init=False)

    def __post_init__(self, prompt_token_ids: Sequence[int]) -> None:
        if not prompt_token_ids:
            raise LooseleafError("the prompt has no tokens; it must have at least one")
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status}, {self.num_prompt_tokens} prompt + "
            f"{self.num_output_tokens} output, {self.num_computed_tokens} computed)"
        )
