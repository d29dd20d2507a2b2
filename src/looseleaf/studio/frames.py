"""The frames of the feed. In JSON they are the events of `GET /studio/feed`, and the lines of a
recording.

A `Snapshot` is the whole state, each `Delta` after it what became different: whoever has applied
all deltas has what a snapshot taken then would say. `seq` goes up by one from frame to frame; where
a number is missing, the next snapshot mends it. All times are seconds on the engine's clock.

Blocks, tables, moves, steps and copies are arrays, in the order of the fields here. Requests are
objects, under short names, that have only those fields that became different. `docs/feed.md` shows
them as they look on the wire.

There may be hundreds of thousands of them, none in a cycle: `gc=False` keeps the garbage collector
from looking at each again and again.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

FORMAT = 1
"""Goes up when a reader of older frames would misunderstand them."""

HASH_DIGITS = 16

NOT_KEPT, IN_MEMORY, ON_DISK = range(3)
"""Where the content of a block of the pool is kept besides: the first place that it is in."""


class Block(Struct, array_like=True, frozen=True, gc=False):
    """A physical block. `hash` begins the hex form of what it is found under, with `num_tokens`
    tokens, whose `text` is told only where that is allowed. A block that is held `num_pins` times
    for pinned prefixes counts those in `ref_count`. `kept` says where else what it holds is."""

    block_id: int
    ref_count: int = 0
    num_pins: int = 0
    num_tokens: int = 0
    hash: str | None = None
    text: str | None = None
    kept: int = NOT_KEPT

    @property
    def free(self) -> bool:
        return self.ref_count == 0 and self.hash is None


class Request(
    Struct,
    kw_only=True,
    gc=False,
    omit_defaults=True,
    rename={
        "num_prompt_tokens": "prompt",
        "num_tokens": "tokens",
        "num_computed_tokens": "computed",
        "num_cached_tokens": "cached",
        "num_preemptions": "preemptions",
        "num_kept_blocks": "kept",
        "region_blocks": "region",
        "max_total_tokens": "limit",
        "arrival_time": "arrival",
        "first_token_time": "first",
    },
):
    """What became different of a request, or all of it when it is new. `number` names it.

    `status` is waiting, held, running or finished, then with its `reason`. `num_kept_blocks` are
    those of a preempted request that are outside the pool, `region_blocks` what a contiguous
    allocator keeps from others for it.
    """

    number: int = field(name="n")
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    num_prompt_tokens: int | UnsetType = UNSET
    num_tokens: int | UnsetType = UNSET
    num_computed_tokens: int | UnsetType = UNSET
    num_cached_tokens: int | UnsetType | None = UNSET
    num_preemptions: int | UnsetType = UNSET
    max_total_tokens: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    arrival_time: float | UnsetType = UNSET
    first_token_time: float | UnsetType | None = UNSET
    num_kept_blocks: int | UnsetType = UNSET
    region_blocks: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET

    def told(self) -> Iterator[tuple[str, Any]]:
        """Names and values of the fields that are told."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not UNSET:
                yield name, value


class Table(Struct, array_like=True, frozen=True, gc=False):
    """From entry `start` on, the block table of a request now reads `block_ids`, and ends there."""

    number: int
    start: int
    block_ids: tuple[int, ...]


class Move(Struct, array_like=True, frozen=True, gc=False):
    """At `time` a request became `status`. `cause` names the request it is held back for or forked
    from, or the reason why it finished."""

    time: float
    number: int
    status: str
    cause: str = ""


class Part(Struct, array_like=True, frozen=True, gc=False):
    """What a step computed of one request: `num_tokens`, the last `num_drafts` of them guesses,
    and how many samples were drawn from them."""

    number: int
    num_tokens: int
    num_drafts: int
    num_samples: int


class StepRun(Struct, array_like=True, frozen=True, gc=False):
    """`num_steps` steps, of which the last is `step_id`. More than one only where the engine makes
    more than `feed.MAX_STEPS` in a delta."""

    step_id: int
    num_steps: int
    start: float
    end: float
    parts: tuple[Part, ...]


class Copy(Struct, array_like=True, frozen=True, gc=False):
    """Block `source` was copied to `destination`, because the request was about to write there."""

    number: int
    source: int
    destination: int


class Counters(Struct, frozen=True, kw_only=True):
    """Totals: since the engine started, but for `output_tokens`, since the feed did. `misses` are
    the prompt tokens that were not found stored, by reason, where somebody counts them."""

    steps: int
    computed_tokens: int
    output_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    held_back: int
    copies: int
    misses: dict[str, int] | UnsetType = UNSET


class Tiers(Struct, frozen=True, kw_only=True):
    """Blocks outside the pool: how many are there, and totals since the start."""

    host_blocks: int
    host_bytes: int
    disk_bytes: int
    saved: int
    loaded_from_host: int
    loaded_from_disk: int


class Snapshot(Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="kind"):
    """Everything. Blocks that are not listed are free."""

    format: int = FORMAT
    seq: int
    time: float
    wall_time: float
    """Seconds since 1970, at the same moment."""
    model: str
    block_size: int
    num_blocks: int
    block_bytes: int
    blocks: list[Block]
    requests: list[Request]
    tables: list[Table]
    counters: Counters
    tiers: Tiers | None = None


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="delta", tag_field="kind"):
    """What became different since the frame before; and what happened, which may have been undone
    since: `moves`, `steps`, `copies`, and `evicted` blocks."""

    seq: int
    time: float
    blocks: list[Block] = []
    requests: list[Request] = []
    tables: list[Table] = []
    moves: list[Move] = []
    steps: list[StepRun] = []
    copies: list[Copy] = []
    evicted: list[int] = []
    counters: Counters | None = None
    tiers: Tiers | None = None


Frame: TypeAlias = Snapshot | Delta

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Frame).decode
"""Raises msgspec.ValidationError (or its base, DecodeError) for what is no frame."""
