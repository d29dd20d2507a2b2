"""How much memory the KV cache gets, and what fits into it."""

import os
from dataclasses import dataclass
from pathlib import Path

from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import EngineSettings, format_bytes

DEFAULT_SHARE = 0.4
"""Of the available memory: room is left for activations and for everybody else."""

TYPICAL_TOKENS = 500
"""Prompt and output of a typical chat: ShareGPT's means add up to 161 + 338 (Kwon et al., 2023)."""


def available_memory() -> int:
    """Bytes this process may still take: of the machine, or of its control group if less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
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
    settings: EngineSettings, kv_bytes_per_token: int, context_length: int
) -> MemoryPlan:
    """Size the pool; raises ConfigError if a request of `max_model_len` cannot fit."""
    block_bytes = kv_bytes_per_token * settings.block_size
    wanted = settings.max_model_len
    if wanted is not None and not 1 <= wanted <= context_length:
        raise ConfigError(
            f"max_model_len is {wanted}, but it must be between 1 and {context_length}, the "
            f"model's context length"
        )
    memory = settings.kv_cache_memory
    if memory is None:
        most_useful = settings.max_num_seqs * blocks_for(
            wanted or context_length, settings.block_size
        )
        memory = min(int(available_memory() * DEFAULT_SHARE), most_useful * block_bytes)
    num_blocks = memory // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"the KV cache has {format_bytes(memory)}, but one block of {settings.block_size} "
            f"tokens takes {format_bytes(block_bytes)}: raise --kv-cache-memory"
        )
    slots = num_blocks * settings.block_size
    if wanted is not None and wanted - 1 > slots:
        raise ConfigError(
            f"a request of max_model_len {wanted} tokens needs "
            f"{format_bytes(blocks_for(wanted - 1, settings.block_size) * block_bytes)} of KV "
            f"cache, but there are {format_bytes(memory)}: set --max-model-len to {slots} or less, "
            f"or raise --kv-cache-memory"
        )
    return MemoryPlan(
        num_blocks, settings.block_size, block_bytes, wanted or min(context_length, slots)
    )
