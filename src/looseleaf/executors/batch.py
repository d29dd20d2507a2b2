"""A step as flat arrays: what the ops of a program take besides buffers and weights."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.executors.rows import InvalidStepError, Rows

Ints = NDArray[np.int64]


class SequenceRange(NamedTuple):
    """One sequence's part of a batch.

    Its tokens are `start`..`stop` of the batch and stand at `first_position` and after; `table` is
    its block table. Of the rows of logits it owns `logits_start`..`logits_stop`; draws are from the
    last of them.
    """

    sequence: ScheduledSequence
    start: int
    stop: int
    first_position: int
    table: Ints
    logits_start: int
    logits_stop: int

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
    the tokens whose logits are wanted, in rising order."""

    token_ids: Ints
    positions: Ints
    slots: Ints
    logits_rows: Ints
    ranges: tuple[SequenceRange, ...]


def make_batch(step: Step, rows: Rows) -> Batch:
    """Lay out a step whose changes `rows` has already taken in."""
    ranges: list[SequenceRange] = []
    wanted: list[int] = []
    start = 0
    for sequence in step.sequences:
        stop = start + len(sequence.token_ids)
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
                np.array(rows.table(sequence.request_id), np.int64),
                logits_start,
                len(wanted),
            )
        )
        start = stop
    return Batch(
        np.array([t for s in step.sequences for t in s.token_ids], np.int64),
        _joined([np.arange(r.stop - r.start) + r.first_position for r in ranges]),
        _joined([r.slots(r.first_position, rows.block_size) for r in ranges]),
        np.array(wanted, np.int64),
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


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
