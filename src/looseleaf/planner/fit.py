"""How many requests fit: a model's weights and KV against the memory of its devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import format_bytes
from looseleaf.planner.dtypes import kv_dtype, weight_dtype
from looseleaf.planner.kv_sizing import KVSizing
from looseleaf.planner.lengths import Lengths, mean_tokens, quantile
from looseleaf.planner.shapes import ModelShape

DEFAULT_UTILIZATION = 0.9
_USUAL_BLOCK = 16
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048


class Overheads(NamedTuple):
    """What is taken besides weights and KV: a rule, not a measurement.

    For the GPU it is within 0.05 GiB of what vLLM 0.19 took on an RTX 4090 (Llama-3.1-8B, 2,048
    tokens and 256 sequences in a step): a float32 row of logits is sorted and copied for sampling.
    """

    runtime: int
    activation_bytes: int
    bytes_per_logit: int


OVERHEADS = {
    "gpu": Overheads(runtime=512 * 2**20, activation_bytes=2, bytes_per_logit=16),
    "cpu": Overheads(runtime=128 * 2**20, activation_bytes=4, bytes_per_logit=4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """`memory` is that of each device, in bytes, of which the engine may take the share
    `gpu_memory_utilization`; `kv_cache_memory` is taken whatever that share is. `overhead`
    (activations and runtime) replaces the rule. `max_num_seqs` None is that of most engines. The
    first `shared_prefix` tokens of all prompts are the same."""

    memory: int
    kind: str = "gpu"
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    weights_dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    max_num_seqs: int | None = None
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    kv_cache_memory: int | None = None
    overhead: int | None = None
    requests: tuple[Lengths, ...] = ()
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        for name in ("memory", "block_size", "tensor_parallel_size", "max_num_seqs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, but it must be at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization:g}, but it must be above "
                "0 and at most 1"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}, but it must be at least 2")


class Budget(NamedTuple):
    """Bytes of one device; `usable` = weights + overhead + kv."""

    memory: int
    usable: int
    weights: int
    overhead: int
    kv: int


class RequestFit(NamedTuple):
    """How many requests fit at once. `full` counts each at its full length, which is safe;
    `average` at what requests hold over their lives, which is what paging reaches, with preemptions
    at times. `contiguous` reserves `max_model_len` for each. `num_blocks` are those of a request at
    its full length; wastes are shares of what is taken then."""

    num_blocks: float
    full: float
    average: float
    contiguous: int
    paged_waste: float
    contiguous_waste: float


class MixFit(NamedTuple):
    """Of several lengths: all together in their shares, and if all were as long as the median or
    the 95th percentile."""

    together: RequestFit
    mean_tokens: float
    p50: Lengths
    at_p50: RequestFit
    p95: Lengths
    at_p95: RequestFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer. `longest` is what one request may store. `at_max_model_len` is of requests of
    that length; `unfreed` is its `full` where blocks behind a window are kept. `requests` are those
    of the settings, in order; `mix` is of more than one."""

    shape: ModelShape
    settings: FitSettings
    weights_dtype: str
    kv_dtype: str
    budget: Budget
    sizing: KVSizing
    num_blocks: int
    max_model_len: int
    longest: int
    at_max_model_len: RequestFit
    unfreed: float
    requests: tuple[RequestFit, ...]
    mix: MixFit | None

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.settings.block_size


def fit(shape: ModelShape, settings: FitSettings) -> Fit:
    """How many requests fit.

    Raises ConfigError if the weights do not fit, if nothing is left for KV, or if a request of the
    `max_model_len` that was asked for cannot fit; the message says what would.
    """
    check_parallel(shape, settings.tensor_parallel_size)
    weights = weight_dtype(_or(settings.weights_dtype, shape.dtype))
    kv = kv_dtype(_or(settings.kv_cache_dtype, _served_kv_dtype(shape, settings.block_size)))
    size, parallel = settings.block_size, settings.tensor_parallel_size
    budget = _budget(shape, settings, weights)
    sizing = KVSizing(shape, kv, size, parallel)
    num_blocks = budget.kv // sizing.block_bytes
    longest = sizing.longest(budget.kv)
    if not longest:
        raise ConfigError(
            f"the KV cache has {format_bytes(budget.kv)}, but one block of {size} tokens takes "
            f"{format_bytes(sizing.block_bytes)}: "
            f"{_advice_for_a_block(shape, settings, weights, sizing.block_bytes)}"
        )
    max_model_len = _max_model_len(shape, settings, sizing, budget.kv, longest)
    if settings.shared_prefix >= max_model_len:
        raise ConfigError(
            f"shared_prefix is {settings.shared_prefix}, but with max_model_len {max_model_len} a "
            f"prompt has at most {max_model_len - 1} tokens: make it shorter"
        )
    measure = _Measure(sizing, budget.kv, max_model_len, settings.shared_prefix)
    unfreed = KVSizing(shape, kv, size, parallel, free_windows=False)
    whole = Lengths(max_model_len - 1, 1)
    requests = settings.requests
    return Fit(
        shape=shape,
        settings=settings,
        weights_dtype=weights,
        kv_dtype=kv,
        budget=budget,
        sizing=sizing,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        longest=longest,
        at_max_model_len=measure.fit(whole),
        unfreed=_Measure(unfreed, budget.kv, max_model_len, settings.shared_prefix).fit(whole).full,
        requests=tuple(measure.fit(lengths) for lengths in requests),
        mix=measure.mix(requests) if len(requests) > 1 else None,
    )


def _or(given: str, automatic: str) -> str:
    return automatic if given == "auto" else given


def _served_kv_dtype(shape: ModelShape, block_size: int) -> str:
    """What `auto` is: for files that Looseleaf serves, its own."""
    if shape.kv_dtype == "int16" and (block_size % 8 or shape.head_dim % 8):
        return "f16"
    return shape.kv_dtype


def check_parallel(shape: ModelShape, size: int) -> None:
    """Raises ConfigError if so many devices cannot share the model's heads."""
    if shape.num_heads % size:
        raise ConfigError(
            f"{shape.num_heads} heads do not divide among {size} devices: choose a "
            "tensor_parallel_size that divides them"
        )
    for layer in shape.kv_layers:
        if layer.num_heads % size and size % layer.num_heads:
            raise ConfigError(
                f"{layer.num_heads} KV heads do not divide among {size} devices, nor the devices "
                "among them: choose another tensor_parallel_size"
            )


def weight_bytes(shape: ModelShape, dtype: str, tensor_parallel_size: int) -> int:
    """Of each device; what is stored counts where it is of this dtype."""
    parameters, parallel = shape.parameters, tensor_parallel_size
    if shape.stored_bytes is not None and dtype == shape.dtype:
        whole = parameters.bytes(dtype)
        return shape.stored_bytes * parameters.bytes(dtype, parallel, shape.num_kv_heads) // whole
    return parameters.bytes(dtype, parallel, shape.num_kv_heads)


def activation_bytes(shape: ModelShape, settings: FitSettings) -> tuple[int, int]:
    """Of the largest step, on each device: what passes between layers, and the logits."""
    rule, parallel = OVERHEADS[settings.kind], settings.tensor_parallel_size
    width = 2 * shape.hidden_size + 3 * -(-shape.ffn_size // parallel)
    hidden = settings.max_num_batched_tokens * width * rule.activation_bytes
    num_seqs = settings.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    return hidden, num_seqs * shape.vocab_size * rule.bytes_per_logit


def _overhead(shape: ModelShape, settings: FitSettings) -> int:
    if settings.overhead is not None:
        return settings.overhead
    return sum(activation_bytes(shape, settings)) + OVERHEADS[settings.kind].runtime


def _budget(shape: ModelShape, settings: FitSettings, dtype: str) -> Budget:
    usable = int(settings.memory * settings.gpu_memory_utilization)
    weights = weight_bytes(shape, dtype, settings.tensor_parallel_size)
    overhead = _overhead(shape, settings)
    kv = settings.kv_cache_memory
    if kv is not None:
        return _given(settings, weights, overhead, kv)
    left = usable - weights - overhead
    if left <= 0:
        raise ConfigError(
            f"the weights of {shape.name} take {format_bytes(weights)} in {dtype}"
            f"{_each(settings)} and activations and runtime {format_bytes(overhead)}, but "
            f"{settings.gpu_memory_utilization:g} of {format_bytes(settings.memory)} is "
            f"{format_bytes(usable)}: {_advice(shape, settings, dtype)}"
        )
    return Budget(settings.memory, usable, weights, overhead, left)


def _given(settings: FitSettings, weights: int, overhead: int, kv: int) -> Budget:
    """What is asked for by the byte is not a matter of shares, as long as it is there."""
    together = weights + overhead + kv
    if together > settings.memory:
        raise ConfigError(
            f"kv_cache_memory is {format_bytes(kv)}, but of {format_bytes(settings.memory)} "
            f"weights take {format_bytes(weights)} and activations and runtime "
            f"{format_bytes(overhead)}: set it lower"
        )
    return Budget(settings.memory, together, weights, overhead, kv)


def _each(settings: FitSettings) -> str:
    size = settings.tensor_parallel_size
    return f" on each of {size} devices" if size > 1 else ""


def _advice_for_a_block(
    shape: ModelShape, settings: FitSettings, dtype: str, block_bytes: float
) -> str:
    """What would make room for one block where the weights are in already."""
    if settings.kv_cache_memory is not None:
        smaller = ", or a smaller block_size" if settings.block_size > 1 else ""
        return f"set kv_cache_memory to {format_bytes(block_bytes)} or more{smaller}"
    if settings.block_size > _USUAL_BLOCK:
        return f"use a smaller block_size, like {_USUAL_BLOCK}"
    return _advice(shape, settings, dtype)


def _advice(shape: ModelShape, settings: FitSettings, dtype: str) -> str:
    """What would make room, of what helps at all."""
    parallel, overhead = settings.tensor_parallel_size, _overhead(shape, settings)
    usable = settings.memory * settings.gpu_memory_utilization
    ways = []
    for size in (2, 4, 8, 16, 32):
        fits = weight_bytes(shape, dtype, size) + overhead < 0.9 * usable
        if size > parallel and shape.num_heads % size == 0 and fits:
            ways.append(f"tensor_parallel_size {size}")
            break
    for smaller in ("fp8", "int4"):
        taken = weight_bytes(shape, smaller, parallel)
        if taken < weight_bytes(shape, dtype, parallel) and taken + overhead < 0.9 * usable:
            ways.append(f"weights_dtype {smaller} ({format_bytes(taken)})")
            break
    wanted = (weight_bytes(shape, dtype, parallel) + overhead) / 0.9
    wanted /= settings.gpu_memory_utilization
    ways.append(f"devices of {format_bytes(wanted)} or more")
    return f"use {' or '.join(ways)}"


def _max_model_len(
    shape: ModelShape, settings: FitSettings, sizing: KVSizing, num_bytes: int, longest: int
) -> int:
    wanted = settings.max_model_len
    if wanted is None:
        return min(shape.max_model_len, max(2, longest))
    if wanted - 1 > longest:
        needed = sizing.request_bytes(wanted - 1)
        raise ConfigError(
            f"a request of max_model_len {wanted} tokens needs {format_bytes(needed)} of KV cache, "
            f"but there are {format_bytes(num_bytes)}: set max_model_len to {longest} or less, or "
            "give it more memory"
        )
    return wanted


class _Measure:
    """Fits requests into a pool of so many bytes."""

    def __init__(
        self, sizing: KVSizing, num_bytes: int, max_model_len: int, shared_prefix: int
    ) -> None:
        self.sizing = sizing
        self.max_model_len = max_model_len
        self.num_bytes = num_bytes
        self.shared_prefix = shared_prefix

    def mix(self, requests: Sequence[Lengths]) -> MixFit:
        p50, p95 = quantile(requests, 0.5), quantile(requests, 0.95)
        return MixFit(
            self.fit(*requests), mean_tokens(requests), p50, self.fit(p50), p95, self.fit(p95)
        )

    def fit(self, *requests: Lengths) -> RequestFit:
        """Of requests that come in these shares. Who generates more tokens is there longer, so at
        any time shares are by output tokens."""
        sizing, shared = self.sizing, self.shared_prefix // self.sizing.block_size
        present = [one.share * one.num_output_tokens for one in requests]

        def mean(values: Iterator[float]) -> float:
            weighted = zip(present, values, strict=True)
            return sum(weight * value for weight, value in weighted) / sum(present)

        def shared_blocks(one: Lengths) -> int:
            return min(shared, (one.num_prompt_tokens - 1) // sizing.block_size)

        full = mean(sizing.request_bytes(one.num_stored, shared_blocks(one)) for one in requests)
        average = mean(
            sizing.mean_request_bytes(
                one.num_prompt_tokens, one.num_output_tokens, shared_blocks(one)
            )
            for one in requests
        )
        pool = self.num_bytes - sizing.shared_bytes(max(map(shared_blocks, requests)))
        stored = mean(one.num_stored for one in requests)
        blocks = mean(blocks_for(one.num_stored, sizing.block_size) for one in requests)
        reserved = round(sizing.bytes_per_token * self.max_model_len)
        longest = max(requests, key=lambda one: one.num_tokens)
        fits = longest.num_tokens <= self.max_model_len and (
            sizing.request_bytes(longest.num_stored) <= self.num_bytes
        )
        return RequestFit(
            num_blocks=blocks,
            full=max(0.0, pool / full) if fits else 0.0,
            average=max(0.0, pool / average) if fits else 0.0,
            contiguous=self.num_bytes // reserved if fits else 0,
            paged_waste=1 - stored / (blocks * sizing.block_size),
            contiguous_waste=max(0.0, 1 - stored / self.max_model_len),
        )
