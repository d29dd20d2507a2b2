"""What an executor remembers of live sequences: a block table each, and the tokens of those whose
draws depend on them."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step


class InvalidStepError(RuntimeError):
    """A step that contradicts itself, earlier steps, or the size of the KV cache: a fault of
    whoever scheduled it. The executor's rows may be half changed and it must not be used on."""


class Told(NamedTuple):
    """All tokens of a sequence, those that a step computes included. Those from
    `num_prompt_tokens` on were generated."""

    token_ids: "array[int]"
    num_prompt_tokens: int


class Rows:
    """The block tables of live sequences, kept up to date from step to step."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: dict[RequestId, array[int]] = {}
        self._told: dict[RequestId, Told] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._tables

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def table(self, request_id: RequestId) -> "array[int]":
        """The block table itself: not to be changed, and valid until the next `update`."""
        return self._tables[request_id]

    def told(self, request_id: RequestId) -> Told | None:
        """Its tokens, if they were told; the same holds as for `table`."""
        return self._told.get(request_id)

    def update(self, step: Step) -> None:
        """Forget `step.finished`, then take in the tables' changes.

        A finished sequence need not have a row: it may have ended before it was ever computed.
        Raises `InvalidStepError` for copies and tables that cannot be.
        """
        for request_id in step.finished:
            self._tables.pop(request_id, None)
            self._told.pop(request_id, None)
        self._check_copies(step)
        seen: set[RequestId] = set()
        for sequence in step.sequences:
            if sequence.request_id in seen:
                raise InvalidStepError(f"{sequence.request_id!r} is twice in step {step.step_id}")
            seen.add(sequence.request_id)
            self._update(sequence)

    def _update(self, sequence: ScheduledSequence) -> None:
        name = sequence.request_id
        if not sequence.token_ids:
            raise InvalidStepError(f"{name!r} has no tokens to compute")
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = array("i")
        if sequence.block_ids:
            if sequence.table_start > len(table):
                raise InvalidStepError(
                    f"{name!r}: entry {sequence.table_start} of its block table is set, but only "
                    f"{len(table)} come before"
                )
            for block_id in sequence.block_ids:
                self._check_block(block_id, f"the block table of {name!r}")
            table[sequence.table_start :] = array("i", sequence.block_ids)
        end = sequence.first_position + len(sequence.token_ids)
        if sequence.first_position < 0 or end > len(table) * self.block_size:
            raise InvalidStepError(
                f"{name!r}: positions {sequence.first_position}..{end - 1} do not fit into its "
                f"{len(table)} blocks of {self.block_size}"
            )
        if sequence.history is not None:
            told = Told(array("i", sequence.history.token_ids), sequence.history.num_prompt_tokens)
            self._told[name] = told
        elif (known := self._told.get(name)) is not None:
            told = known
        else:
            return
        if len(told.token_ids) < sequence.first_position:
            raise InvalidStepError(
                f"{name!r}: tokens from position {sequence.first_position} on, but of those "
                f"before only {len(told.token_ids)} were told"
            )
        told.token_ids[sequence.first_position :] = array("i", sequence.token_ids)

    def _check_copies(self, step: Step) -> None:
        sources = {copy.source for copy in step.copies}
        destinations = {copy.destination for copy in step.copies}
        for block_id in sources | destinations:
            self._check_block(block_id, "a copy")
        if len(destinations) < len(step.copies) or sources & destinations:
            raise InvalidStepError(
                f"step {step.step_id}: a block is the destination of two copies, or source and "
                "destination at once"
            )

    def _check_block(self, block_id: int, where: str) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise InvalidStepError(
                f"block {block_id} in {where}, but there are only {self.num_blocks} blocks"
            )
