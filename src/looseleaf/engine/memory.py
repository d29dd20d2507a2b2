"""How much memory the KV cache gets, and what fits into it."""

import os
from dataclasses import dataclass
from pathlib import Path

from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import EngineSettings, format_bytes, memory_range

DEFAULT_SHARE = 0.4
"""Of the available memory: room is left for activations and for everybody else."""

TYPICAL_TOKENS = 500
"""Prompt and output of a typical chat: ShareGPT's means add up to 161 + 338 (Kwon et al., 2023)."""


def available_memory() -> int:
    """Bytes this process may still take: of the machine, or of its control group if less."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            limit, used = Path(limit_file).read_text().strip(), Path(usage_file).read_text()
        except OSError:
            continue
        if limit.isdigit():
            available = min(available, max(0, int(limit) - int(used)))
    return available


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The pool as it was sized. `str()` is the line in the start-up log."""

    num_blocks: int
    block_size: int
    block_bytes: int
    max_model_len: int
    floor_blocks: int | None = None
    """What is kept while there is nothing to do; None is all."""

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def requests_of(self, num_tokens: int) -> float:
        """How many requests fit that grow to `num_tokens` each and share nothing."""
        return self.num_blocks / blocks_for(max(1, num_tokens - 1), self.block_size)

    def __str__(self) -> str:
        typical = min(TYPICAL_TOKENS, self.max_model_len)
        return (
            f"KV cache: {format_bytes(self.num_blocks * self.block_bytes)} = {self.num_blocks} "
            f"blocks of {self.block_size} tokens = {self.num_tokens} tokens; fits "
            f"{self.requests_of(self.max_model_len):.1f} requests of {self.max_model_len} tokens "
            f"(max_model_len) or {self.requests_of(typical):.0f} of {typical} tokens (typical); "
            f"blocks are taken on demand, so these are not limits"
        )


def plan_memory(
    settings: EngineSettings, kv_bytes_per_token: int, context_length: int, other_bytes: int = 0
) -> MemoryPlan:
    """Size the pool, before `other_bytes` of weights and swap space are taken. Raises ConfigError
    if a request of `max_model_len` cannot fit, or if there is less memory than was asked for."""
    size = settings.block_size
    block_bytes = kv_bytes_per_token * size
    wanted = settings.max_model_len
    if wanted is not None and wanted > context_length:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model's context is {context_length} tokens: set "
            f"it to {context_length} or less"
        )
    available = max(0, available_memory() - other_bytes)
    memory, floor = settings.kv_cache_memory, None
    if memory is None:
        most_useful = settings.max_num_seqs * blocks_for(wanted or context_length, size)
        memory = min(int(available * DEFAULT_SHARE), most_useful * block_bytes)
    else:
        floor, memory = memory_range(memory)
    if memory > available:
        raise ConfigError(
            f"kv_cache_memory is {format_bytes(memory)}, but only {format_bytes(available)} of "
            f"memory are available besides the model's weights and the swap space: set it lower, "
            f"or leave it out"
        )
    num_blocks = memory // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"the KV cache has {format_bytes(memory)}, but one block of {size} tokens takes "
            f"{format_bytes(block_bytes)}: raise kv_cache_memory"
        )
    slots = (num_blocks - settings.num_pinnable(num_blocks)) * size
    if wanted is not None and wanted - 1 > slots:
        needed = blocks_for(wanted - 1, size) * block_bytes
        raise ConfigError(
            f"a request of max_model_len {wanted} tokens needs {format_bytes(needed)} of KV cache, "
            f"but there are {format_bytes(memory)}{_less_pinnable(settings)}: set max_model_len to "
            f"{slots} or less, or raise kv_cache_memory"
        )
    floor_blocks = None if floor is None else floor // block_bytes
    max_model_len = wanted or min(context_length, slots)
    return MemoryPlan(num_blocks, size, block_bytes, max_model_len, floor_blocks)


def _less_pinnable(settings: EngineSettings) -> str:
    if not settings.pin_budget:
        return ""
    return f", of which pinned prefixes may hold {settings.pin_budget:.0%} (pin_budget)"
