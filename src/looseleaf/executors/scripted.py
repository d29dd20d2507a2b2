"""A fake that does no arithmetic and misses nothing: for tests of everything above an executor.

In place of keys and values each slot holds a *chain* value, a hash of its token and all tokens
before it. The KV of position p is computed, as in a model, from the new token and the KV that is
read through the block table at p - 1; the sampled token is a pure function of the last chain
value. So if a scheduler ever lets a sequence read KV that is stale, foreign or in the wrong order,
this executor either raises `InvalidStepError` or samples other tokens than `expected_token` says.
"""

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NoReturn

from looseleaf.core.request import RequestId
from looseleaf.core.step import ScheduledSequence, Step, StepResult, TokenLogprobs
from looseleaf.executors.rows import InvalidStepError, Rows

_MASK = (1 << 64) - 1
_EMPTY_CHAIN = 0x9E3779B97F4A7C15
DEFAULT_VOCAB_SIZE = 1000

NextToken = Callable[[RequestId, int], int | None]


def extend_chain(chain: int, token_id: int) -> int:
    """The chain value of a token that follows tokens with the chain value `chain`."""
    mixed = ((chain ^ (token_id + 1)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 31)


def chain_of(token_ids: Sequence[int]) -> int:
    """The chain value of the last of these tokens, which begin a sequence."""
    chain = _EMPTY_CHAIN
    for token_id in token_ids:
        chain = extend_chain(chain, token_id)
    return chain


def expected_token(
    token_ids: Sequence[int],
    sample_index: int = 0,
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    eos_token_id: int | None = None,
    mean_output_tokens: int = 64,
) -> int:
    """What a `ScriptedExecutor` with these settings samples after `token_ids`."""
    tokens = _Tokens(vocab_size, eos_token_id, mean_output_tokens)
    return tokens.sample(chain_of(token_ids), sample_index)


def expected_logprob(token_ids: Sequence[int], token_id: int) -> float:
    """What a `ScriptedExecutor` gives as the log-probability of `token_id` after `token_ids`."""
    return _logprob(chain_of(token_ids), token_id)


class _Tokens:
    """The sampling: a token as a function of a chain value."""

    def __init__(self, vocab_size: int, eos_token_id: int | None, mean_output_tokens: int) -> None:
        if vocab_size < 1 or mean_output_tokens < 1:
            raise ValueError("vocab_size and mean_output_tokens must be at least 1")
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self.mean_output_tokens = mean_output_tokens

    def sample(self, chain: int, sample_index: int) -> int:
        mixed = extend_chain(chain, (sample_index + 1) << 32)
        if self.eos_token_id is not None and (mixed >> 40) % self.mean_output_tokens == 0:
            return self.eos_token_id
        return mixed % self.vocab_size


class ScriptedExecutor:
    """Implements `Executor` without a model.

    `next_token(request_id, position)` says what is sampled at a position, or None for logits that
    are not numbers; by default it is `expected_token` of the tokens before. Then, with an
    `eos_token_id`, one token in `mean_output_tokens` is that one. `vocab_size` is the number of
    ids, given and sampled.

    Raises `InvalidStepError` when a step reads a slot that was never written (or was overwritten
    meanwhile), or KV that is not of the sequence's own tokens; when it writes into a block that
    another live sequence also has; and for whatever `Rows` refuses.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        next_token: NextToken | None = None,
        *,
        vocab_size: int = DEFAULT_VOCAB_SIZE,
        eos_token_id: int | None = None,
        mean_output_tokens: int = 64,
    ) -> None:
        self._block_size = block_size
        self._next_token = next_token
        self._tokens = _Tokens(vocab_size, eos_token_id, mean_output_tokens)
        self._rows = Rows(num_blocks, block_size)
        self._blocks: list[list[int]] = [[] for _ in range(num_blocks)]
        """Of each block: the chain value before its first slot, then one per written slot."""
        self._ends: dict[RequestId, tuple[int, int]] = {}
        """Of each row: how many tokens it has stored, and the chain value of the last."""
        self._num_drafts: dict[RequestId, int] = {}
        """Of each row: how many of these it may take back."""

    def execute(self, step: Step) -> StepResult:
        start = perf_counter()
        for request_id in step.finished:
            self._ends.pop(request_id, None)
            self._num_drafts.pop(request_id, None)
        self._rows.update(step)
        for source, destination in step.copies:
            self._blocks[destination] = self._blocks[source].copy()
        self._check_writers(step)
        # As in a model all of a step's KV is written before any sequence's is read: a sequence
        # that reads what another writes in this step sees the new.
        scores = [self._write(sequence) for sequence in step.sequences]
        for sequence in step.sequences:
            self._read(sequence)
        middle = perf_counter()
        tokens: list[int | None] = []
        logprobs: list[TokenLogprobs | None] = []
        for sequence in step.sequences:
            for draw, chain in zip(sequence.samples, self._draw_chains(sequence), strict=True):
                token: int | None
                if self._next_token is None:
                    token = self._tokens.sample(chain, draw.sample_index)
                else:
                    token = self._next_token(draw.request_id, draw.position)
                tokens.append(token)
                count = draw.params.logprobs
                if count is None or token is None:
                    logprobs.append(None)
                else:
                    logprobs.append(self._logprobs(token, count))
        durations = (("forward", middle - start), ("sample", perf_counter() - middle))
        asked = zip(step.sequences, scores, strict=True)
        return StepResult(
            step.step_id,
            tuple(tokens),
            tuple(logprobs),
            tuple(values for sequence, values in asked if sequence.prompt_logprobs),
            durations,
            tuple(
                tuple(
                    self._logprobs(token_id, sequence.num_prompt_top).top
                    for token_id in _following(sequence)
                )
                for sequence in step.sequences
                if sequence.num_prompt_top
            ),
        )

    def read_block(self, block_id: int) -> bytes:
        return array("Q", self._blocks[block_id]).tobytes().ljust(self.block_bytes, b"\0")

    def write_block(self, block_id: int, data: bytes) -> None:
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, but these are {len(data)}")
        self._blocks[block_id] = array("Q", data).tolist()

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self._blocks[block_id] = []

    @property
    def block_bytes(self) -> int:
        """Of what stands for a block's keys and values."""
        return 8 * (self._block_size + 1)

    def close(self) -> None:
        self._blocks = []

    def _check_writers(self, step: Step) -> None:
        """A block that is written belongs to one row."""
        size = self._block_size
        written: dict[int, RequestId] = {}
        for sequence in step.sequences:
            name, table = sequence.request_id, self._rows.table(sequence.request_id)
            end = sequence.first_position + len(sequence.token_ids)
            for block_id in table[sequence.first_position // size : (end - 1) // size + 1]:
                if block_id in written:
                    raise InvalidStepError(
                        f"{name!r} writes block {block_id}, and so does {written[block_id]!r}"
                        if written[block_id] != name
                        else f"{name!r} has block {block_id} twice in its table"
                    )
                written[block_id] = name
        for name in self._rows:
            for block_id in written.keys() & self._rows.table(name):
                if written[block_id] != name:
                    raise InvalidStepError(
                        f"{written[block_id]!r} writes block {block_id}, which {name!r} also has"
                    )

    def _write(self, sequence: ScheduledSequence) -> tuple[float, ...]:
        """Store the chain values of the new tokens; returns the log-probabilities asked for."""
        size, table = self._block_size, self._rows.table(sequence.request_id)
        position = sequence.first_position
        stored = self._ends.get(sequence.request_id)
        taken_back = 0 if stored is None else stored[0] - position
        if not 0 <= taken_back <= self._num_drafts.get(sequence.request_id, 0):
            assert stored is not None
            raise InvalidStepError(
                f"{sequence.request_id!r} goes on at position {position}, but has stored "
                f"{stored[0]} tokens"
            )
        chain = self._chain_at(sequence.request_id, table, position - 1)
        if stored is not None and taken_back == 0 and stored[1] != chain:
            self._fail(sequence.request_id, table, position - 1)
        scores: list[float] = []
        for i, token_id in enumerate(sequence.token_ids):
            if not 0 <= token_id < self._tokens.vocab_size:
                raise InvalidStepError(
                    f"{sequence.request_id!r} has token {token_id}, but the vocabulary has "
                    f"{self._tokens.vocab_size}"
                )
            if i and sequence.prompt_logprobs:
                scores.append(_logprob(chain, token_id))
            before, chain = chain, extend_chain(chain, token_id)
            block, slot = self._blocks[table[position // size]], position % size + 1
            if slot == 1 and block[:1] != [before]:
                block[:] = [before]
            if block[slot - 1 : slot] != [before]:
                self._fail(sequence.request_id, table, position - 1)
            if block[slot : slot + 1] != [chain]:
                # What follows in the block came after another token: nobody's any more.
                block[slot:] = [chain]
            position += 1
        if sequence.prompt_logprobs and sequence.next_token_id is not None:
            scores.append(_logprob(chain, sequence.next_token_id))
        self._ends[sequence.request_id] = (position, chain)
        self._num_drafts[sequence.request_id] = sequence.num_drafts
        return tuple(scores)

    def _draw_chains(self, sequence: ScheduledSequence) -> list[int]:
        """The chain value that each of its samples is drawn from."""
        end, last = self._ends[sequence.request_id]
        if not sequence.num_drafts:
            return [last] * len(sequence.samples)
        table = self._rows.table(sequence.request_id)
        first = end - 1 - sequence.num_drafts
        return [self._chain_at(sequence.request_id, table, i) for i in range(first, end)]

    def _read(self, sequence: ScheduledSequence) -> None:
        """Read the whole context through the table, as attention would: each block must go on from
        the one before, and the last chain value be the one that this sequence has written."""
        size, table = self._block_size, self._rows.table(sequence.request_id)
        end, last = self._ends[sequence.request_id]
        counts = [size] * (end // size)
        if end % size:
            counts.append(end % size)
        chain = _EMPTY_CHAIN
        for i, (block_id, count) in enumerate(zip(table, counts, strict=False)):
            block = self._blocks[block_id]
            if len(block) <= count:
                self._fail(sequence.request_id, table, i * size + max(0, len(block) - 1))
            if block[0] != chain:
                self._fail(sequence.request_id, table, i * size)
            chain = block[count]
        if chain != last:
            self._fail(sequence.request_id, table, end - 1)

    def _chain_at(self, request_id: RequestId, table: Sequence[int], position: int) -> int:
        if position < 0:
            return _EMPTY_CHAIN
        block, slot = self._blocks[table[position // self._block_size]], position % self._block_size
        if len(block) <= slot + 1:
            self._fail(request_id, table, position)
        return block[slot + 1]

    def _fail(self, request_id: RequestId, table: Sequence[int], position: int) -> NoReturn:
        block_id, offset = table[position // self._block_size], position % self._block_size
        what = (
            "which is not written, or was overwritten from an earlier slot on"
            if len(self._blocks[block_id]) <= offset + 1
            else "which does not hold the KV of its own tokens up to there"
        )
        slot = block_id * self._block_size + offset
        raise InvalidStepError(
            f"{request_id!r} reads position {position} in slot {slot} (block {block_id}), {what}"
        )

    def _logprobs(self, token_id: int, count: int) -> TokenLogprobs:
        others = ((token_id + i) % self._tokens.vocab_size for i in range(count))
        top = tuple((other, -1.0 - i) for i, other in enumerate(others))
        return TokenLogprobs(-1.0, top)


def _following(sequence: ScheduledSequence) -> tuple[int, ...]:
    """The tokens of a sequence that are scored."""
    last = () if sequence.next_token_id is None else (sequence.next_token_id,)
    return sequence.token_ids[1:] + last


def _logprob(chain: int, token_id: int) -> float:
    return -(extend_chain(chain, token_id) % 1000 + 1) / 100
