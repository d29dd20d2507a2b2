"""What a step costs, without computing it: FLOPs and bytes, from the model's own program.

Counted are what grows with a model: products, attention, the weights and the KV cache. Norms,
rotations and sums are not, nor what passes between ops: executors do those on rows at hand.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from looseleaf.core.step import ScheduledSequence, Step
from looseleaf.executors.kv_dtype import kv_row_bytes
from looseleaf.program.op import Embed, Linear, PagedAttention, WriteKV
from looseleaf.program.program import Program, RowKind


class StepCost(NamedTuple):
    """A multiplication and an addition are two `FLOPs`. Weights are read once in a step, and of
    the KV cache each sequence reads its context once, also where others share its blocks."""

    linear_flops: int = 0
    attention_flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    num_tokens: int = 0
    num_sequences: int = 0

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops

    @property
    def num_reductions(self) -> int:
        """Sums over devices: there is one."""
        return 0

    @property
    def sent_bytes(self) -> int:
        return 0

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes


class CostCounter:
    """Counts steps of one program. `weight_bytes` has the size of each of its weights as stored,
    `kv_dtype` is a name of `KV_NUMBER_BYTES`. Block copies are not counted."""

    def __init__(self, program: Program, weight_bytes: Mapping[str, int], kv_dtype: str) -> None:
        shapes = dict(program.weights)
        rows = {buffer.buffer_id: buffer.rows for buffer in program.buffers}
        self._row_flops: Counter[RowKind] = Counter()
        self._embed_bytes = 0
        self._num_kv_layers = 0
        self._attention: Counter[tuple[RowKind, int | None]] = Counter()
        """How many layers attend for which rows, through which window."""
        read: dict[RowKind, set[str]] = {"tokens": set(), "sampled": set()}
        for op in program.ops:
            match op:
                case Embed():
                    self._embed_bytes += weight_bytes[op.weight] // shapes[op.weight][0]
                case Linear():
                    kind = rows[op.target]
                    out, width = shapes[op.weight]
                    self._row_flops[kind] += 2 * out * width
                    read[kind].update((op.weight,) if op.bias is None else (op.weight, op.bias))
                case WriteKV():
                    self._num_kv_layers += 1
                case PagedAttention():
                    self._attention[rows[op.queries], op.window] += 1
        self._windows = {window for _, window in self._attention if window is not None}
        # What is read for tokens is not read again for sampled rows.
        self._weight_bytes: dict[RowKind, int] = {
            "tokens": sum(weight_bytes[name] for name in read["tokens"]),
            "sampled": sum(weight_bytes[name] for name in read["sampled"] - read["tokens"]),
        }
        self._pair_flops = 4 * program.num_heads * program.head_dim
        self._kv_bytes = 2 * program.num_kv_heads * kv_row_bytes(kv_dtype, program.head_dim)

    def count(self, step: Step) -> StepCost:
        """What computing the sequences of a step takes."""
        num_tokens = num_sampled = 0
        own_pairs = own_context = sampled_context = 0  # without windows, of one layer
        pairs = kv_tokens = 0
        plain = not self._windows
        for sequence in step.sequences:
            length = len(sequence.token_ids)
            num_tokens += length
            if plain and not sequence.prompt_logprobs and not sequence.num_drafts:
                # By far the most: one token, or a chunk of a prompt.
                end = sequence.first_position + length
                own_pairs += end if length == 1 else (2 * end + 1 - length) * length // 2
                own_context += end
                if sequence.samples:
                    num_sampled += 1
                    sampled_context += end
                continue
            wanted = list(_wanted(sequence))
            num_sampled += sum(map(len, wanted))
            start = sequence.first_position
            own = [range(start, start + length)]
            for (kind, window), num_layers in self._attention.items():
                positions = own if kind == "tokens" else wanted
                pairs += num_layers * sum(_num_pairs(r, window) for r in positions)
                kv_tokens += num_layers * _context(positions, window)
        early, late = self._attention["tokens", None], self._attention["sampled", None]
        pairs += early * own_pairs + late * sampled_context
        kv_tokens += early * own_context + late * sampled_context
        return self._cost(num_tokens, num_sampled, pairs, kv_tokens, len(step.sequences))

    def decoding(self, num_stored: Sequence[int]) -> Iterator[StepCost]:
        """What each of the coming steps takes, without end, in which every sequence computes one
        token and samples from it: `num_stored` are the tokens that each has before the first."""
        num = len(num_stored)
        contexts = [
            (num_layers, Contexts(window, num_stored))
            for (_, window), num_layers in self._attention.items()
            if num_layers
        ]
        while True:
            keys = sum(num_layers * one.advance() for num_layers, one in contexts)
            yield self._cost(num, num, keys, keys, num)

    def _cost(
        self, num_tokens: int, num_sampled: int, pairs: int, kv_tokens: int, num_sequences: int
    ) -> StepCost:
        weight_bytes = self._embed_bytes * num_tokens
        if num_tokens:
            weight_bytes += self._weight_bytes["tokens"]
        if num_sampled:
            weight_bytes += self._weight_bytes["sampled"]
        return StepCost(
            num_tokens * self._row_flops["tokens"] + num_sampled * self._row_flops["sampled"],
            pairs * self._pair_flops,
            weight_bytes,
            kv_tokens * self._kv_bytes,
            num_tokens * self._num_kv_layers * self._kv_bytes,
            num_tokens,
            num_sequences,
        )


class Contexts:
    """How many keys the next tokens of sequences read, in a layer with this window: step by step,
    while each gets one token a step. `num_stored` are the tokens that each begins with."""

    def __init__(self, window: int | None, num_stored: Sequence[int]) -> None:
        lengths = num_stored if window is None else [min(n, window) for n in num_stored]
        self._keys = sum(lengths)
        self._num_growing = sum(window is None or n < window for n in lengths)
        # After how many steps so many fill their window.
        self._filled = Counter(window - n for n in lengths if window is not None and n < window)
        self._step = 0

    def advance(self) -> int:
        """Of the next step, all sequences together."""
        self._keys += self._num_growing
        self._step += 1
        if self._filled:
            self._num_growing -= self._filled.pop(self._step, 0)
        return self._keys


def _wanted(sequence: ScheduledSequence) -> Iterator[range]:
    """The positions whose logits are wanted, as in `executors/batch.py`, without repetition."""
    end = sequence.first_position + len(sequence.token_ids)
    draws_from = end
    if sequence.samples or sequence.next_token_id is not None:
        draws_from = end - 1 - sequence.num_drafts
    if sequence.prompt_logprobs:
        yield range(sequence.first_position, min(end - 1, draws_from))
    yield range(draws_from, end)


def _num_pairs(positions: range, window: int | None) -> int:
    """Of queries at these positions and the keys that each may read."""
    first, end = positions.start, positions.stop
    if first >= end:
        return 0
    if window is None:
        return (first + 1 + end) * (end - first) // 2
    whole = max(first, min(end, window))  # from here on the window is shorter than the context
    return (first + 1 + whole) * (whole - first) // 2 + (end - whole) * window


def _context(positions: list[range], window: int | None) -> int:
    """How many tokens' KV these queries read, each once."""
    filled = [r for r in positions if r]
    if not filled:
        return 0
    first, end = filled[0].start, filled[-1].stop
    return end if window is None else end - max(0, first + 1 - window)
