"""Settings of the bookkeeping: small, frozen, validated with advice."""

from dataclasses import dataclass

from looseleaf.core.errors import ConfigError
from looseleaf.core.policy import POLICIES


def _at_least(name: str, value: int, minimum: int, advice: str) -> None:
    if value < minimum:
        raise ConfigError(f"{name} is {value}, but it must be at least {minimum}: {advice}")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The pool: `num_blocks` blocks of `block_size` tokens each."""

    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1, "16 suits most workloads")
        _at_least("num_blocks", self.num_blocks, 1, "give the KV cache more memory")

    @property
    def num_slots(self) -> int:
        """Tokens whose KV fits into the whole pool."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much a step may hold, and in which order requests get it.

    `long_prefill_token_threshold` is the most tokens of a step that prompts longer than itself may
    take, all of them together, while shorter work could use the rest; what nobody else needs they
    get all the same. None means half the token budget.
    """

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int | None = None
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        _at_least("max_model_len", self.max_model_len, 1, "a request needs room for one token")
        _at_least("max_num_seqs", self.max_num_seqs, 1, "a step serves at least one sequence")
        _at_least(
            "max_num_batched_tokens", self.max_num_batched_tokens, 1, "512 is a good start on a CPU"
        )
        if self.long_prefill_token_threshold is not None:
            _at_least(
                "long_prefill_token_threshold",
                self.long_prefill_token_threshold,
                1,
                "leave it out for half the token budget",
            )
        if self.policy not in POLICIES:
            raise ConfigError(
                f"scheduling policy {self.policy!r} is not known; choose one of "
                f"{', '.join(POLICIES)}"
            )

    @property
    def long_prefill_tokens(self) -> int:
        """The cap in force, in tokens a step."""
        if self.long_prefill_token_threshold is not None:
            return min(self.long_prefill_token_threshold, self.max_num_batched_tokens)
        return max(1, self.max_num_batched_tokens // 2)
