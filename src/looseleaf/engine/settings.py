"""What a user can set about an engine, under the names that vLLM's users know."""

import re
from dataclasses import dataclass
from pathlib import Path

from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.errors import ConfigError
from looseleaf.engine.contiguous import RULES

EXECUTORS = ("auto", "native", "reference")
KV_CACHE_DTYPES = ("auto", "f32", "f16", "int16", "int8")
ACTIVATIONS = ("int8", "f32")
MAX_SPECULATIVE_NGRAM = 32
MAX_PIN_BUDGET = 0.9
PREEMPTION_MODES = ("auto", "swap", "recompute")
KV_ALLOCATORS = ("paged", *(f"contiguous-{rule}" for rule in RULES))

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`max_model_len` None is the model's context, or what fits into the KV cache if that is less.
    `kv_cache_memory` is in bytes, or like "2GiB"; None is a share of the memory that is available.
    A pair like "256MiB:2GiB" is what is kept while there is nothing to do, and the most there is
    at any time. `pin_budget` is the share of the KV cache that pinned prefixes may hold.
    Downloads go to `cache_dir`; None is the user's own.

    With `speculative_ngram`, up to so many tokens of each request are guessed from what followed
    its last ones earlier in it, and checked all in one step: answers are the same, and sooner where
    text repeats.

    Blocks that no longer fit into the KV cache are kept in `swap_space` of memory (bytes, or like
    "1GiB"), and then in the folder `kv_disk`, which takes `kv_disk_size` at most and survives
    restarts.
    `preemption_mode` says what becomes of a request that has to give way: "auto" loads what is kept
    of it where that takes less time than computing it again, "swap" always does, "recompute" needs
    no swap space.

    `executor` "auto" is the native one, or the reference where there is no compiled part. The rest
    is for the native executor: `threads` None is one for each physical core that this process may
    use; `kv_cache_dtype` "auto" is int16, or f16 where block size or head_dim are not
    multiples of 8; `activations` are what products with quantized weights
    take; with `cache_weights`, weights are packed once and kept in the cache folder for later
    starts."""

    model: str = "smollm2-135m"
    executor: str = "auto"
    threads: int | None = None
    activations: str = "int8"
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    admission_headroom: int = 64
    kv_cache_memory: int | str | None = None
    kv_cache_dtype: str = "auto"
    kv_allocator: str = "paged"
    pin_budget: float = 0.0
    swap_space: int | str | None = None
    preemption_mode: str = "auto"
    kv_disk: Path | str | None = None
    kv_disk_size: int | str = "8GiB"
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    speculative_ngram: int = 0
    cache_dir: Path | None = None
    cache_weights: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("executor", self.executor, EXECUTORS),
            ("activations", self.activations, ACTIVATIONS),
            ("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES),
            ("kv_allocator", self.kv_allocator, KV_ALLOCATORS),
            ("preemption_mode", self.preemption_mode, PREEMPTION_MODES),
        ):
            if value not in known:
                raise ConfigError(
                    f"{name} {value!r} is not known; choose one of {', '.join(known)}"
                )
        if self.threads is not None and not 1 <= self.threads <= 256:
            raise ConfigError(f"threads is {self.threads}, but it must be between 1 and 256")
        most = max(0, min(MAX_SPECULATIVE_NGRAM, self.max_num_batched_tokens - 1))
        if not 0 <= self.speculative_ngram <= most:
            raise ConfigError(
                f"speculative_ngram is {self.speculative_ngram}, but it must be between 0 (off) "
                f"and {most}"
            )
        if self.kv_disk is not None:
            object.__setattr__(self, "kv_disk", Path(self.kv_disk))
        self._check_tiers()
        if not 0 <= self.pin_budget <= MAX_PIN_BUDGET:
            raise ConfigError(
                f"pin_budget is {self.pin_budget}, but it is a share of the KV cache: it must be "
                f"between 0 and {MAX_PIN_BUDGET}"
            )
        # The core's own checks, before a model is loaded for nothing.
        self.cache_config(num_blocks=1)
        self.scheduler_config(1 if self.max_model_len is None else self.max_model_len)

    def _check_tiers(self) -> None:
        if self.swap_space is not None and num_bytes_of(self.swap_space) == 0:
            object.__setattr__(self, "swap_space", None)  # how vLLM's users switch it off
        swaps, finds = self.swap_space is not None, self.enable_prefix_caching
        for name, wanted in (
            ("swap_space", swaps),
            ("kv_disk", self.kv_disk is not None),
            ("pin_budget", self.pin_budget > 0),
        ):
            if wanted and not (finds and self.kv_allocator == "paged"):
                raise ConfigError(
                    f"{name} keeps blocks to be found again, which needs the paged allocator and "
                    f"prefix caching: enable both, or leave {name} out"
                )
        if self.preemption_mode == "swap" and not swaps:
            raise ConfigError("preemption_mode 'swap' needs room to swap to: set swap_space")
        if self.preemption_mode == "recompute" and swaps:
            raise ConfigError(
                "preemption_mode 'recompute' has no use for swap_space: leave one of them out"
            )

    def cache_config(self, num_blocks: int) -> CacheConfig:
        pinnable = self.num_pinnable(num_blocks)
        return CacheConfig(num_blocks, self.block_size, self.enable_prefix_caching, pinnable)

    def num_pinnable(self, num_blocks: int) -> int:
        return int(num_blocks * self.pin_budget)

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        return SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            admission_headroom=self.admission_headroom,
            policy=self.scheduling_policy,
        )


MOST_BYTES = 2**60
"""That a size can be: more than any machine has."""


def parse_bytes(text: str) -> int:
    """Bytes from "2GiB", "512M", "1.5g" or a plain number; raises ConfigError."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmg]i?)?b?\s*", text.lower())
    if match is None:
        raise ConfigError(
            f"memory size {text[:40]!r} is not understood; write it like 2GiB or 512M"
        )
    size = float(match[1]) * _UNITS[match[2] or ""]
    if size > MOST_BYTES:
        raise ConfigError(
            f"memory size {text[:40]!r} is too large: at most {MOST_BYTES >> 30}GiB is understood"
        )
    return int(size)


def memory_range(size: int | str) -> tuple[int | None, int]:
    """The least, if it is given, and the most of a `kv_cache_memory`; raises ConfigError."""
    if not isinstance(size, str) or ":" not in size:
        return None, num_bytes_of(size)
    least, _, most = size.partition(":")
    floor, limit = parse_bytes(least), parse_bytes(most)
    if floor > limit:
        raise ConfigError(f"kv_cache_memory {size!r} has more at the least than at the most")
    return floor, limit


def num_bytes_of(size: int | str) -> int:
    """A setting's size in bytes."""
    return parse_bytes(size) if isinstance(size, str) else size


def format_bytes(num_bytes: float) -> str:
    """Bytes for people: "1.9 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
