"""What decoding sequences read together: kernels read a block once for all that have it."""

from collections.abc import Iterable, Sequence

from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step

READ_TOGETHER = 128
"""Positions: sequences that share all blocks of such a piece of their contexts read it at once, as
`kAttentionSplit` of the native kernels has it."""


class SharedReads:
    """Counts, from step to step, the positions that decoding sequences need not read themselves.

    Blocks are shared from the beginning of a context on, so the last block of a piece stands for
    all of it.
    """

    def __init__(self, block_size: int) -> None:
        self._every = max(1, READ_TOGETHER // block_size)
        self._num_positions = self._every * block_size
        self._pieces: dict[RequestId, list[int]] = {}
        """Of every live sequence: the last block of each piece of its table."""
        self._decoding: dict[RequestId, list[int]] = {}
        self._readers: dict[int, int] = {}
        """How many decoding sequences have the block."""
        self.num_shared = 0

    def step(self, step: Step) -> int:
        """Take note of a step, and return how many positions are read for another sequence too."""
        for name in step.finished:
            self._pieces.pop(name, None)
            self._leave(name)
        for sequence in step.sequences:
            name = sequence.request_id
            if sequence.block_ids:
                self._set_table(sequence)
            if len(sequence.token_ids) == 1:
                self._enter(name, sequence.first_position)
            else:
                self._leave(name)
        return self.num_shared

    def decoding(self, names: Sequence[RequestId], num_stored: Iterable[int]) -> int:
        """The same where nobody but these decodes, with `num_stored` tokens each."""
        for gone in self._decoding.keys() - set(names):
            self._leave(gone)
        for name, stored in zip(names, num_stored, strict=True):
            self._enter(name, stored)
        return self.num_shared

    def _set_table(self, sequence: ScheduledSequence) -> None:
        start, every = sequence.table_start, self._every
        pieces = self._pieces.setdefault(sequence.request_id, [])
        del pieces[start // every :]
        pieces += sequence.block_ids[every - 1 - start % every :: every]

    def _enter(self, name: RequestId, num_stored: int) -> None:
        if name in self._decoding:
            return
        blocks = self._pieces.get(name, [])[: num_stored // self._num_positions]
        self._decoding[name] = blocks
        for block in blocks:
            readers = self._readers.get(block, 0)
            self._readers[block] = readers + 1
            if readers:
                self.num_shared += self._num_positions

    def _leave(self, name: RequestId) -> None:
        for block in self._decoding.pop(name, ()):
            readers = self._readers.pop(block) - 1
            if readers:
                self._readers[block] = readers
                self.num_shared -= self._num_positions
