"""A request: its tokens, what it asked for, and how far it has come."""

import math
from dataclasses import dataclass
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


def _require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise LooseleafError(f"{name} is {value!r}, but it must be {rule}")


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
        _require(1 <= self.n <= 128, "n", self.n, "between 1 and 128")
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "a finite number of at least 0 (0 is greedy)",
        )
        _require(self.top_k >= -1, "top_k", self.top_k, "at least 1, or 0 or -1 for off")
        _require(0 <= self.top_p <= 1, "top_p", self.top_p, "between 0 and 1 (1 is off)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1 (0 is off)")
        _require(
            self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", self.seed, "in 0..2**63-1"
        )
        _require(
            self.max_tokens is None or self.max_tokens >= 0,
            "max_tokens",
            self.max_tokens,
            "at least 0, or None for the rest of the context",
        )
        _require(all(self.stop), "stop", self.stop, "a list of strings that are not empty")
        _require(
            self.logprobs is None or 0 <= self.logprobs <= 20,
            "logprobs",
            self.logprobs,
            "between 0 and 20, or None",
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1


class Request:
    """One sequence: the prompt, what was generated, and counters.

    `token_ids` is prompt and output in one list; `num_computed_tokens` counts those whose KV is
    stored, so the newest sampled token is in the first and not in the second. `children` are the
    further samples of the same prompt: each becomes a running request of its own once this one
    has computed the prompt for all of them.

    `stop_token_ids` are all ids that end it (the model's own end tokens included, unless ignored).
    `expected_tokens` is what a reservation allocator assumes prompt and output will come to.
    """

    __slots__ = (
        "arrival_index",
        "arrival_time",
        "block_keys",
        "children",
        "expected_tokens",
        "extra_keys",
        "finish_reason",
        "finish_time",
        "first_scheduled_time",
        "first_token_time",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scored_tokens",
        "params",
        "parent_id",
        "priority",
        "request_id",
        "root_key",
        "sample_index",
        "status",
        "stop_token_ids",
        "tail_key",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int] | tuple[int, ...],
        params: SamplingParams,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
        extra_keys: ExtraKeys = (),
        stop_token_ids: frozenset[int] = frozenset(),
        expected_tokens: int | None = None,
        sample_index: int = 0,
        children: tuple["Request", ...] = (),
    ) -> None:
        if not prompt_token_ids:
            raise LooseleafError("the prompt has no tokens; it must have at least one")
        self.request_id = RequestId(request_id)
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.priority = priority
        self.extra_keys = extra_keys
        self.stop_token_ids = stop_token_ids
        self.sample_index = sample_index
        self.children = children
        self.parent_id: RequestId | None = None  # while it waits for its parent's prompt
        self.expected_tokens = expected_tokens
        self.max_total_tokens = 0  # set by the scheduler, which knows the context
        self.arrival_time = arrival_time
        self.arrival_index = 0  # set by the scheduler
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        self.num_scored_tokens = 1  # prompt log-probabilities delivered; the first token has none
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.finish_time: float | None = None
        self.finish_reason: FinishReason | None = None
        # Hashed once and kept over every attempt to schedule; see hashing.py.
        self.root_key: BlockKey | None = None
        self.block_keys: list[BlockKey] = []
        self.tail_key: BlockKey | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens besides the newest one are still to be computed."""
        return self.num_computed_tokens < len(self.token_ids) - 1

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status}, {self.num_prompt_tokens} prompt + "
            f"{self.num_output_tokens} output, {self.num_computed_tokens} computed)"
        )
