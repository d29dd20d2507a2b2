"""A request: its tokens, what it asked for, and how far it has come."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import StrEnum
from typing import NewType, Protocol

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import BlockKey, ExtraKeys

RequestId = NewType("RequestId", str)


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


class Params(Protocol):
    """What is to be known here of a request's `SamplingParams`, which are the sampler's.

    With `needs_history`, executors are told all tokens of the request.
    """

    @property
    def max_tokens(self) -> int | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def prompt_logprobs(self) -> bool: ...
    @property
    def prompt_top_logprobs(self) -> int: ...
    @property
    def needs_history(self) -> bool: ...


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One sequence: the prompt, what was generated, and counters.

    `token_ids` is prompt and output in one list; `num_computed_tokens` counts those whose KV is
    stored, so the newest sampled token is in the first and not in the second. `children` are the
    further samples of the same prompt: each becomes a running request of its own once this one
    has computed the prompt for all of them.

    `stop_token_ids` are all ids that end it (the model's own end tokens included, unless ignored).
    With `takes_drafts` several tokens may be drawn in one step, from the logits after guesses.
    """

    request_id: RequestId
    prompt_token_ids: InitVar[Sequence[int]]
    params: Params
    _: KW_ONLY
    arrival_time: float = 0.0
    priority: int = 0
    extra_keys: ExtraKeys = ()
    stop_token_ids: frozenset[int] = frozenset()
    sample_index: int = 0
    children: tuple["Request", ...] = ()
    takes_drafts: bool = False

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
    """Found stored when it was first computed; never changed after."""
    num_scored_tokens: int = field(default=1, init=False)
    """Prompt tokens whose log-probability was delivered; the first one has none."""
    num_preemptions: int = field(default=0, init=False)
    first_scheduled_time: float | None = field(default=None, init=False)
    first_token_time: float | None = field(default=None, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)

    drafting: object = field(default=None, init=False)
    """What a drafter keeps of it between steps."""

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
