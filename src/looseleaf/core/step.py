"""What crosses to executors and back: frozen, plain, comparable with ==, cheap to record."""

from collections.abc import Iterator
from typing import NamedTuple

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import FinishReason, Params, RequestId


class BlockCopy(NamedTuple):
    """Copy the whole of block `source` to block `destination`, in every layer."""

    source: BlockId
    destination: BlockId


class BlockSave(NamedTuple):
    """Keep what full block `block_id` holds, which is about to be overwritten: the KV of
    `token_ids` after all that `parent_hash` names, known as `hash`."""

    block_id: BlockId
    hash: bytes
    parent_hash: bytes
    token_ids: tuple[int, ...]


class BlockLoad(NamedTuple):
    """Write what was saved as `hash` into block `block_id`."""

    block_id: BlockId
    hash: bytes


class Sample(NamedTuple):
    """Draw the token at `position` of `request_id` from the logits of the position before.

    `(seed, sample_index, position)` is the key of its random number. `barred` are tokens that
    must not come yet.
    """

    request_id: RequestId
    params: Params
    sample_index: int
    position: int
    barred: frozenset[int] = frozenset()


class History(NamedTuple):
    """The tokens of a sequence so far; those from `num_prompt_tokens` on were generated."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


class ScheduledSequence(NamedTuple):
    """New tokens of one sequence: `token_ids` stand at `first_position` and after.

    From entry `table_start` on the sequence's block table reads `block_ids` (no change if empty).
    `samples` are drawn from the last token's logits: none while a prompt is being computed, one as
    a rule, more when several samples of one prompt begin. The last `num_drafts` tokens are guesses:
    then `samples` has one from the logits of the token before them and of each of them, in order.
    With `prompt_logprobs` the executor also
    returns the log-probability of each token after the first of these (and of `next_token_id`,
    which follows them), given the tokens before it; and, where `num_prompt_top` is not 0, the most
    likely tokens in its place. A sequence whose draws depend on its tokens
    comes with those before `first_position` when executors first see it, as its `history`.
    """

    request_id: RequestId
    token_ids: tuple[int, ...]
    first_position: int
    table_start: int
    block_ids: tuple[BlockId, ...]
    samples: tuple[Sample, ...]
    prompt_logprobs: bool = False
    next_token_id: int | None = None
    num_prompt_top: int = 0
    history: History | None = None
    num_drafts: int = 0


class Step(NamedTuple):
    """One forward pass. Before an executor has it, `saves` are made and then `loads`. `finished`
    sequences are forgotten first, then `copies` are made, then `sequences` are computed."""

    step_id: int
    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...] = ()
    finished: tuple[RequestId, ...] = ()
    saves: tuple[BlockSave, ...] = ()
    loads: tuple[BlockLoad, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    def samples(self) -> Iterator[Sample]:
        """All draws in the order in which a `StepResult` lists their tokens."""
        for sequence in self.sequences:
            yield from sequence.samples


Top = tuple[tuple[int, float], ...]
"""The most likely tokens with their log-probabilities, in falling order."""


class TokenLogprobs(NamedTuple):
    """Raw log-softmax: of the sampled token, and of the most likely ones."""

    logprob: float
    top: Top = ()


class StepResult(NamedTuple):
    """`tokens` and `logprobs` follow `Step.samples()`; a token is None where the logits are not
    numbers, which ends that request alone. `prompt_logprobs` follows the sequences that asked for
    them, `prompt_top` those that asked for that. `durations` are seconds by phase. `forced` has for
    each token those that must follow it whatever the logits; it is empty where there are none."""

    step_id: int
    tokens: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[tuple[float, ...], ...] = ()
    durations: tuple[tuple[str, float], ...] = ()
    prompt_top: tuple[tuple[Top, ...], ...] = ()
    forced: tuple[tuple[int, ...], ...] = ()


class Update(NamedTuple):
    """News of one request: tokens it gained, and why it ended, if it did."""

    request_id: RequestId
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_top: tuple[Top, ...] = ()
