"""Why the KV of a prompt, or of its end, was not found stored."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.hashing import BlockKey
from looseleaf.core.request import Request, RequestId, Status

LEAST_REMEMBERED = 4096
"""Blocks that are remembered after they are gone, however small the pool."""

SALT = "cache_salt"


class MissReason(StrEnum):
    DISABLED = "disabled"
    """There is no prefix cache."""
    LOGPROBS = "logprobs"
    """Log-probabilities of the prompt were asked for, so all of it is computed."""
    TOO_SHORT = "too_short"
    """It has one token, and the last one is always computed, for its logits."""
    EVICTED = "evicted"
    """It was stored once, and is not any more."""
    SALTED = "salted"
    """Without its cache_salt the first block would have been found."""
    DIVERGED = "diverged"
    """Others began the same way, and went on differently."""
    FIRST_SEEN = "first_seen"
    """Nothing is known of it; or it goes on where all that was stored has an end."""


class PrefixMiss(NamedTuple):
    """From token `position` on, `num_tokens` were computed that might have been found."""

    reason: MissReason
    position: int
    num_tokens: int


@dataclass(slots=True, eq=False, repr=False)
class ObservedRequest(Request):
    """A request that keeps why its prompt was not found, if anybody looked for it."""

    prefix_miss: PrefixMiss | None = field(default=None, init=False)


class PrefixMisses:
    """Watches requests from their first step to their end. Belongs to whoever runs the steps.

    What was stored once is remembered by its hash: as many blocks as the pool has, twice over.
    Nothing is told that its sender could not find out by sending it: other salts are not looked at.
    """

    def __init__(self, allocator: KVAllocator) -> None:
        self.requests = dict.fromkeys(MissReason, 0)
        self.tokens = dict.fromkeys(MissReason, 0)
        self.cacheable_tokens = 0
        """Of all prompts, without the last token of each."""
        self._tables: BlockTables | None = None
        if isinstance(allocator, BlockTables) and allocator.prefix_caching:
            self._tables = allocator
        self._block_size = allocator.block_size
        self._watched: dict[RequestId, Request] = {}
        self._stored = _Memory(max(LEAST_REMEMBERED, allocator.num_blocks))

    def began(self, request: Request, num_found: int) -> None:
        """A step computes it for the first time, or again, from token `num_found` on. To be called
        before the step is applied."""
        self._watched[request.request_id] = request
        if request.num_cached_tokens is not None:
            return
        num_cacheable = request.num_prompt_tokens - 1
        self.cacheable_tokens += num_cacheable
        reason = self._reason(request, num_found)
        if reason is None:
            return
        miss = PrefixMiss(reason, num_found, num_cacheable - num_found)
        self.requests[reason] += 1
        self.tokens[reason] += miss.num_tokens
        if isinstance(request, ObservedRequest):
            request.prefix_miss = miss

    def ended(self, request_id: RequestId) -> None:
        """It holds no blocks any more, for good or for a while."""
        request = self._watched.pop(request_id, None)
        if request is None or self._tables is None:
            return
        num_stored = request.num_computed_tokens
        if request.status is not Status.FINISHED:
            num_stored = request.num_tokens - 1  # it was preempted, which has set the other to 0
        for key in request.block_keys[: num_stored // self._block_size]:
            self._stored.add(key.hash)
        if request.tail_key is not None and num_stored >= request.num_prompt_tokens:
            self._stored.add(request.tail_key.hash)

    def _reason(self, request: Request, num_found: int) -> MissReason | None:
        if self._tables is None:
            return MissReason.DISABLED
        if request.params.prompt_logprobs:
            return MissReason.LOGPROBS
        if request.num_prompt_tokens == 1:
            return MissReason.TOO_SHORT
        if num_found >= request.num_prompt_tokens - 1:
            return None
        index = num_found // self._block_size
        missing: BlockKey | None = request.tail_key
        if index < request.num_prompt_tokens // self._block_size:
            missing = request.block_keys[index]
        if missing is None:
            return MissReason.FIRST_SEEN
        if missing.hash in self._stored:
            return MissReason.EVICTED
        if index == 0 and self._is_found_unsalted(self._tables, request):
            return MissReason.SALTED
        if num_found and self._go_on_differently(self._tables, missing):
            return MissReason.DIVERGED
        return MissReason.FIRST_SEEN

    def _go_on_differently(self, tables: BlockTables, missing: BlockKey) -> bool:
        """Whether something is stored in the place of `missing` that is no beginning of it."""
        assert missing.parent is not None
        stored = tables.pool.children_of(missing.parent)
        # Of its beginnings there is at most one of each length.
        return len(stored) > self._block_size or any(
            tokens != missing.token_ids[: len(tokens)] for tokens, _ in stored
        )

    def _is_found_unsalted(self, tables: BlockTables, request: Request) -> bool:
        extra_keys = tuple(pair for pair in request.extra_keys if pair[0] != SALT)
        if extra_keys == request.extra_keys:
            return False
        beginning = request.token_ids[: min(request.num_prompt_tokens, self._block_size + 1)]
        other = Request(RequestId("unsalted"), beginning, request.params, extra_keys=extra_keys)
        return tables.match(other).num_tokens == len(beginning) - 1


class _Memory:
    """Hashes: at least the last `capacity` that were added, and at most twice as many."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def add(self, block_hash: bytes) -> None:
        self._newer.add(hash(block_hash))
        if len(self._newer) == self._capacity:
            self._older, self._newer = self._newer, set()

    def __contains__(self, block_hash: bytes) -> bool:
        found = hash(block_hash)
        return found in self._newer or found in self._older
