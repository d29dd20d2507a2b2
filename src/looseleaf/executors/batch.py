"""A step as flat arrays: what the ops of a program take besides buffers and weights."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.executors.rows import InvalidStepError, Rows, Told

Ints = NDArray[np.int64]


class SequenceRange(NamedTuple):
    """One sequence's part of a batch.

    Its tokens are `start`..`stop` of the batch and stand at `first_position` and after; `table` is
    its block table. Of the rows of logits it owns `logits_start`..`logits_stop`; draws are from the
    last of them. `told` are all its tokens, where draws depend on them.
    """

    sequence: ScheduledSequence
    start: int
    stop: int
    first_position: int
    table: Ints
    logits_start: int
    logits_stop: int
    told: Told | None = None

    @property
    def scored_token_ids(self) -> tuple[int, ...]:
        """The tokens whose log-probabilities were asked for, one per row from `logits_start` on."""
        if not self.sequence.prompt_logprobs:
            return ()
        following = self.sequence.next_token_id
        return self.sequence.token_ids[1:] + (() if following is None else (following,))

    def slots(self, first: int, block_size: int) -> Ints:
        """The slots of its positions from `first` to its last token."""
        positions = np.arange(first, self.first_position + self.stop - self.start)
        return self.table[positions // block_size] * block_size + positions % block_size


class Batch(NamedTuple):
    """`token_ids`, `positions` and `slots` have an entry per token of the step; `logits_rows` are
    the tokens whose logits are wanted, in rising order. `tables` are the block tables one after
    another, that of range i from `table_starts[i]` on."""

    token_ids: Ints
    positions: Ints
    slots: Ints
    logits_rows: Ints
    tables: Ints
    table_starts: Ints
    ranges: tuple[SequenceRange, ...]


def make_batch(step: Step, rows: Rows) -> Batch:
    """Lay out a step whose changes `rows` has already taken in."""
    # One array operation for all sequences instead of one for each: with 64 of them it matters.
    entries = [rows.table(sequence.request_id) for sequence in step.sequences]
    tables = np.frombuffer(b"".join(entries), np.int64)
    table_stops = list(accumulate(map(len, entries)))
    ranges: list[SequenceRange] = []
    wanted: list[int] = []
    token_ids: list[int] = []
    start = table_start = 0
    for sequence, table_stop in zip(step.sequences, table_stops, strict=True):
        token_ids += sequence.token_ids
        stop = len(token_ids)
        logits_start = len(wanted)
        if sequence.prompt_logprobs:
            wanted.extend(range(start, stop - 1))
        if sequence.samples or sequence.next_token_id is not None:
            wanted.append(stop - 1)
        ranges.append(
            SequenceRange(
                sequence,
                start,
                stop,
                sequence.first_position,
                tables[table_start:table_stop],
                logits_start,
                len(wanted),
                rows.told(sequence.request_id),
            )
        )
        start, table_start = stop, table_stop
    lengths = np.array([part.stop - part.start for part in ranges], np.int64)
    shifts = np.array([part.first_position - part.start for part in ranges], np.int64)
    positions = np.arange(len(token_ids)) + np.repeat(shifts, lengths)
    table_starts = np.array([0, *table_stops], np.int64)[:-1]
    places, offsets = np.divmod(positions, rows.block_size)
    slots = tables[np.repeat(table_starts, lengths) + places] * rows.block_size + offsets
    return Batch(
        np.array(token_ids, np.int64),
        positions,
        slots,
        np.array(wanted, np.int64),
        tables,
        table_starts,
        tuple(ranges),
    )


def check_batch(batch: Batch, vocab_size: int) -> None:
    """Raise InvalidStepError for ids that would be looked up outside the vocabulary, and for a slot
    written twice, which is a lost token."""
    ids = batch.token_ids
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise InvalidStepError(
            f"token ids {ids.min()}..{ids.max()}, but the vocabulary has {vocab_size}"
        )
    slots = np.sort(batch.slots)
    if (slots[1:] == slots[:-1]).any():
        raise InvalidStepError("two tokens of a step are written to one slot")
