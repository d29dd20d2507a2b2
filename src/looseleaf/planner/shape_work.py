"""The work of a step from a model's shape, for models that no page here describes.

Where there is a page, `executors.cost` counts the program itself, and a test holds this to it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from looseleaf.executors.cost import Contexts
from looseleaf.planner.cost_model import StepPart
from looseleaf.planner.dtypes import kv_dtype, weight_dtype
from looseleaf.planner.shapes import ModelShape, Parameters


class StepWork(NamedTuple):
    """On each device. A multiplication and an addition are two FLOPs; weights are read once in a
    step, and each sequence reads its context once. `num_reductions` are sums over all devices, for
    which each sends `sent_bytes` together."""

    linear_flops: int
    attention_flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int
    num_reductions: int = 0
    sent_bytes: int = 0


class ShapeCounter:
    """Counts steps of one model, in which every sequence samples one token.

    Of experts, those are read that at least one token goes to, if all are equally likely. Devices
    sum up what attention and the feed-forward part of each layer give, in 16 bits and by a ring:
    each sends `2 * (n - 1) / n` of it (Patarasuk and Yuan, 2009).
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: str = "auto",
        kv: str = "auto",
        tensor_parallel_size: int = 1,
    ) -> None:
        self.shape = shape
        weights = weight_dtype(shape.dtype if weights == "auto" else weights)
        kv = kv_dtype(shape.kv_dtype if kv == "auto" else kv)
        self._parallel = tensor_parallel_size
        self._num_reductions = 2 * shape.num_layers if tensor_parallel_size > 1 else 0
        ring = 2 * (tensor_parallel_size - 1) / tensor_parallel_size
        self._sent_bytes = round(self._num_reductions * 2 * shape.hidden_size * ring)
        parts = shape.parameters
        output = parts.embedding if shape.tied_embeddings else parts.output
        experts = Parameters(0, 0, 0, 0, 0, experts=parts.experts)
        always = parts._replace(embedding=0, output=output, experts=0)
        share = (tensor_parallel_size, shape.num_kv_heads)
        self._always_bytes = always.bytes(weights, *share)
        self._expert_bytes = experts.bytes(weights, *share)
        self._embedding_bytes = 2 * shape.hidden_size
        used = shape.num_experts_per_token / shape.num_experts if shape.num_experts else 0.0
        self._used = used
        matrices = parts.linear + parts.kv + parts.replicated + parts.router
        self._token_flops = 2 * (matrices + round(parts.experts * used))
        self._output_flops = 2 * output
        layers = Counter(
            (layer.window, round(layer.bytes_per_token(kv, tensor_parallel_size)))
            for layer in shape.kv_layers
        )
        self._layers = [(window, size, count) for (window, size), count in layers.items()]

    def decoding(self, num_stored: Sequence[int]) -> Iterator[StepWork]:
        """Of the coming steps, without end, in which every sequence computes one token, as `count`
        would tell one by one; `num_stored` tokens each has before the first."""
        num = len(num_stored)
        whole = self.count([StepPart(1, 0)] * num)
        contexts = [
            (size, num_layers, Contexts(window, num_stored))
            for window, size, num_layers in self._layers
        ]
        while True:
            flops = read = 0
            for size, num_layers, one in contexts:
                keys = num_layers * one.advance()
                flops += keys * self.shape.pair_flops[False]
                read += keys * size
            yield whole._replace(attention_flops=flops // self._parallel, kv_read_bytes=read)

    def count(self, parts: Sequence[StepPart]) -> StepWork:
        num_tokens = sum(part.num_new_tokens for part in parts)
        linear = num_tokens * self._token_flops + len(parts) * self._output_flops
        attention = read = written = 0
        for window, size, count in self._layers:
            for num_new, stored in parts:
                flops = self.shape.pair_flops[num_new > 1]
                attention += count * flops * _num_pairs(num_new, stored, window)
                end = stored + num_new
                read += count * size * (end if window is None else min(end, window + num_new - 1))
            written += count * size * num_tokens
        touched = 1 - (1 - self._used) ** num_tokens
        return StepWork(
            linear // self._parallel,
            attention // self._parallel,
            self._always_bytes
            + round(self._expert_bytes * touched)
            + num_tokens * self._embedding_bytes,
            read,
            written,
            self._num_reductions,
            num_tokens * self._sent_bytes,
        )


def _num_pairs(num_new: int, stored: int, window: int | None) -> int:
    """Of the new tokens and the keys that each may read, its own included."""
    end = stored + num_new
    if window is None:
        return (stored + 1 + end) * num_new // 2
    whole = max(stored, min(end, window))  # from here on the window is shorter than the context
    return (stored + 1 + whole) * (whole - stored) // 2 + (end - whole) * window
