"""A step as flat arrays: what the ops of a program take besides buffers and weights."""

from array import array
from collections.abc import Iterable
from itertools import accumulate, chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.executors.rows import InvalidStepError, Rows, Told


class SequenceRange(NamedTuple):
    """One sequence's part of a batch.

    Its tokens are `start`..`stop` of the batch and stand at `first_position` and after; `table` is
    its block table, valid until the next step. Of the rows of logits it owns
    `logits_start`..`logits_stop`; `draw_rows` are those that its samples are drawn from. `told` are
    all its tokens, where draws depend on them.
    """

    sequence: ScheduledSequence
    start: int
    stop: int
    first_position: int
    table: "array[int]"
    logits_start: int
    logits_stop: int
    told: Told | None = None

    @property
    def draw_rows(self) -> Iterable[int]:
        """Of each sample of the sequence, in order."""
        num_drafts = self.sequence.num_drafts
        if num_drafts:
            return range(self.logits_stop - 1 - num_drafts, self.logits_stop)
        return repeat(self.logits_stop - 1, len(self.sequence.samples))

    @property
    def scored_token_ids(self) -> tuple[int, ...]:
        """The tokens whose log-probabilities were asked for, one per row from `logits_start` on."""
        if not self.sequence.prompt_logprobs:
            return ()
        following = self.sequence.next_token_id
        return self.sequence.token_ids[1:] + (() if following is None else (following,))

    def slots(self, first: int, block_size: int) -> NDArray[np.int64]:
        """The slots of its positions from `first` to its last token."""
        end = self.first_position + self.stop - self.start
        return np.fromiter(_slots(self.table, first, end, block_size), np.int64)


class Batch(NamedTuple):
    """`token_ids`, `positions` and `slots` have an entry per token of the step; `logits_rows` are
    the tokens whose logits are wanted, in rising order. `tables` are the block tables one after
    another, that of range i from `table_starts[i]` on. Slots are int64, all else int32."""

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]
    logits_rows: NDArray[np.int32]
    tables: NDArray[np.int32]
    table_starts: list[int]
    ranges: tuple[SequenceRange, ...]


def make_batch(step: Step, rows: Rows, vocab_size: int) -> Batch:
    """Lay out a step whose changes `rows` has already taken in.

    Raises InvalidStepError for ids that would be looked up outside the vocabulary, and for a slot
    written twice, which is a lost token.
    """
    # Lists, and one array of each at the end: with a few tokens, which is what a step mostly has,
    # operations on arrays cost more than the numbers.
    size = rows.block_size
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    ranges: list[SequenceRange] = []
    tables: list[array[int]] = []
    for sequence in step.sequences:
        table = rows.table(sequence.request_id)
        tables.append(table)
        start, first = len(token_ids), sequence.first_position
        token_ids += sequence.token_ids
        stop = len(token_ids)
        end = first + stop - start
        positions += range(first, end)
        slots += _slots(table, first, end, size)
        logits_start = len(wanted)
        if sequence.prompt_logprobs:
            wanted.extend(range(start, stop - 1))
        if sequence.samples or sequence.next_token_id is not None:
            wanted.extend(range(stop - 1 - sequence.num_drafts, stop))
        told = rows.told(sequence.request_id)
        ranges.append(
            SequenceRange(sequence, start, stop, first, table, logits_start, len(wanted), told)
        )
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise InvalidStepError(
            f"token ids {min(token_ids)}..{max(token_ids)}, but the vocabulary has {vocab_size}"
        )
    if len(set(slots)) < len(slots):
        raise InvalidStepError("two tokens of a step are written to one slot")
    table_starts = [0, *accumulate(map(len, tables))][:-1]
    return Batch(
        np.array(token_ids, np.int32),
        np.array(positions, np.int32),
        np.array(slots, np.int64),
        np.array(wanted, np.int32),
        np.frombuffer(b"".join(tables), np.int32),
        table_starts,
        tuple(ranges),
    )


def _slots(table: "array[int]", first: int, end: int, block_size: int) -> Iterable[int]:
    """The slots of the positions `first`..`end` - 1 of a sequence with this block table."""
    if end - first == 1:
        return (table[first // block_size] * block_size + first % block_size,)
    runs = []
    for index in range(first // block_size, -(-end // block_size)):
        start, shift = index * block_size, (table[index] - index) * block_size
        runs.append(range(shift + max(first, start), shift + min(end, start + block_size)))
    return chain.from_iterable(runs)
