"""Settings of the bookkeeping: small, frozen, validated with advice."""

from dataclasses import dataclass

from looseleaf.core.errors import ConfigError
from looseleaf.core.policy import POLICIES


def _at_least_one(config: object, **advice: str) -> None:
    for name, text in advice.items():
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, but it must be at least 1: {text}")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The pool: `num_blocks` blocks of `block_size` tokens each. Requests cannot count on
    `num_pinnable` of them, which may be held for pinned prefixes."""

    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    num_pinnable: int = 0

    def __post_init__(self) -> None:
        _at_least_one(
            self,
            block_size="16 suits most workloads",
            num_blocks="give the KV cache more memory",
        )
        if not 0 <= self.num_pinnable < self.num_blocks:
            raise ConfigError(
                f"{self.num_pinnable} of {self.num_blocks} blocks may be pinned, but requests need "
                f"at least one: pin less"
            )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much a step may hold, and in which order requests get it.

    `long_prefill_token_threshold` is the most tokens of a step that prompts longer than itself may
    take, all of them together, while shorter work could use the rest; what nobody else needs they
    get all the same. None means half the token budget. A request joins others only where it and
    they could all grow by `admission_headroom` tokens: who joins too early is soon preempted, and
    computed again.
    """

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int | None = None
    admission_headroom: int = 0
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        _at_least_one(
            self,
            max_model_len="a request needs room for one token",
            max_num_seqs="a step serves at least one sequence",
            max_num_batched_tokens="512 is a good start on a CPU",
            long_prefill_token_threshold="leave it out for half the token budget",
        )
        if self.admission_headroom < 0:
            raise ConfigError(
                f"admission_headroom is {self.admission_headroom}, but it must be at least 0 tokens"
            )
        if self.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise ConfigError(
                f"scheduling policy {self.policy!r} is unknown; choose one of {known}"
            )

    @property
    def long_prefill_tokens(self) -> int:
        """The cap in force, in tokens a step."""
        if self.long_prefill_token_threshold is not None:
            return min(self.long_prefill_token_threshold, self.max_num_batched_tokens)
        return max(1, self.max_num_batched_tokens // 2)
