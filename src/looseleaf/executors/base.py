"""The seam between bookkeeping and arithmetic: a step, and a block in or out."""

from collections.abc import Sequence
from typing import Protocol

from looseleaf.core.step import Step, StepResult


class Executor(Protocol):
    """Computes steps, in the order in which they were scheduled.

    An executor keeps a row per live sequence (its block table) and the KV blocks; everything else
    comes with the step, so there is no second copy of a request's state to drift. A sequence is
    new when a step first names it, and forgotten when `Step.finished` does: preemption is the
    one followed by the other.
    """

    def execute(self, step: Step) -> StepResult:
        """Forget `step.finished`, make `step.copies`, compute `step.sequences`, draw samples.

        Returns after the KV of every token of the step is stored. Does not modify `step`.
        """
        ...

    def read_block(self, block_id: int) -> bytes:
        """All that is stored in a KV block, between two steps."""
        ...

    def write_block(self, block_id: int, data: bytes) -> None:
        """Put back what `read_block` gave, into the same or another block. Raises ValueError if it
        is not as long as a block."""
        ...

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        """Nothing that these blocks hold is wanted any more: their memory may go back to the
        system until they are written again."""
        ...

    def close(self) -> None:
        """Give back memory and threads; the executor cannot be used afterwards. Closing it again
        does nothing."""
        ...
