"""The answer of `looseleaf fit`, for people and as JSON."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from looseleaf.engine.settings import format_bytes
from looseleaf.planner.dtypes import GGML_BITS, kv_bytes
from looseleaf.planner.fit import (
    DEFAULT_MAX_NUM_SEQS,
    OVERHEADS,
    Fit,
    RequestFit,
    activation_bytes,
)
from looseleaf.planner.fit_warnings import warnings
from looseleaf.planner.lengths import Lengths
from looseleaf.planner.shapes import KVLayer, ModelShape


class Line(NamedTuple):
    """One line of the arithmetic: what, from what, and how much."""

    what: str
    formula: str
    value: str


def arithmetic(fit: Fit) -> list[Line]:
    """How the number of blocks comes about."""
    return [*_memory(fit), *_blocks(fit)]


def _memory(fit: Fit) -> Iterator[Line]:
    settings, shape, budget = fit.settings, fit.shape, fit.budget
    parallel = settings.tensor_parallel_size
    given = settings.kv_cache_memory is not None
    share = "at most" if given else f"x {settings.gpu_memory_utilization:g}"
    yield Line("usable", f"{format_bytes(budget.memory)} {share}", format_bytes(budget.usable))
    yield Line("weights", _weights(fit), f"- {format_bytes(budget.weights)}")
    if settings.overhead is None:
        rule = OVERHEADS[settings.kind]
        hidden, logits = activation_bytes(shape, settings)
        divided = f" / {parallel}" if parallel > 1 else ""
        yield Line(
            "activations",
            f"{settings.max_num_batched_tokens} tokens x (2 x {shape.hidden_size} + 3 x "
            f"{shape.ffn_size}{divided}) x {rule.activation_bytes} B",
            f"- {format_bytes(hidden)}",
        )
        yield Line(
            "logits",
            f"{settings.max_num_seqs or DEFAULT_MAX_NUM_SEQS} sequences x {shape.vocab_size} x "
            f"{rule.bytes_per_logit} B",
            f"- {format_bytes(logits)}",
        )
        yield Line("runtime", "a rule", f"- {format_bytes(rule.runtime)}")
    else:
        yield Line("overhead", "as given", f"- {format_bytes(budget.overhead)}")
    yield Line("KV cache", "as given" if given else "what is left", format_bytes(budget.kv))


def _weights(fit: Fit) -> str:
    shape, parallel = fit.shape, fit.settings.tensor_parallel_size
    text = f"{shape.parameters.total:,} parameters in {fit.weights_dtype}"
    if shape.stored_bytes is not None and fit.weights_dtype == shape.dtype:
        text = f"{shape.parameters.total:,} parameters, {shape.stored_bytes:,} B as stored"
    elif fit.weights_dtype not in ("f32", "f16", "bf16", *GGML_BITS):
        kept = "all but experts" if fit.weights_dtype == "mxfp4" else "embedding and output"
        text += f", {kept} in 16 bits"
    return text + (f", over {parallel} devices" if parallel > 1 else "")


def _blocks(fit: Fit) -> Iterator[Line]:
    settings, sizing = fit.settings, fit.sizing
    size, parallel = settings.block_size, settings.tensor_parallel_size
    layers = Counter(layer._replace(window=None) for layer in fit.shape.kv_layers)
    formula = " + ".join(_token(layer, n, fit.kv_dtype, parallel) for layer, n in layers.items())
    yield Line("one token", formula, f"{sizing.bytes_per_token:,.0f} B")
    yield Line(
        "one block",
        f"{size} tokens x {sizing.bytes_per_token:,.0f} B",
        format_bytes(sizing.block_bytes),
    )
    yield Line(
        "blocks",
        f"{format_bytes(fit.budget.kv)} / {format_bytes(sizing.block_bytes)}",
        f"{fit.num_blocks:,} = {fit.num_tokens:,} tokens",
    )
    windows = Counter(layer.window for layer in fit.shape.kv_layers if layer.window is not None)
    for window, count in windows.items():
        most = sizing.window_blocks(window)
        yield Line(
            "windows",
            f"{count} layers that see {window} tokens",
            f"at most {most} blocks = {most * size:,} tokens of a request",
        )


def _token(layer: KVLayer, count: int, dtype: str, parallel: int) -> str:
    heads = max(1, layer.num_heads // parallel)
    if not layer.value_dim:
        return f"{count} layers x {layer.key_dim} x {_number(dtype, layer.key_dim)}"
    if layer.key_dim == layer.value_dim:
        per_head = f"{layer.key_dim} x {_number(dtype, layer.key_dim)}"
        if dtype in ("int16", "int8"):
            per_head = f"({layer.key_dim} x {1 if dtype == 'int8' else 2} B + 4 B)"
        return f"2 x {count} layers x {heads} KV heads x {per_head}"
    numbers = layer.key_dim + layer.value_dim
    return f"{count} layers x {heads} KV heads x {numbers} x {_number(dtype, numbers)}"


def _number(dtype: str, numbers: int) -> str:
    return f"{kv_bytes(dtype, numbers) / numbers:g} B"


def as_text(fit: Fit) -> str:
    shape, settings = fit.shape, fit.settings
    lines = [_title(shape), f"  {shape.source}", ""]
    rows = arithmetic(fit)
    wide = max(len(row.formula) for row in rows)
    lines += [f"  {row.what:11}  {row.formula:{wide}}  {row.value}" for row in rows]
    lines += ["", *_table(fit)]
    found = warnings(fit)
    if found:
        lines += ["", *(f"warning: {warning.message}" for warning in found)]
    if settings.overhead is None:
        lines += [
            "",
            "Activations, logits and runtime are a rule; --overhead takes what an engine reports.",
        ]
    return "\n".join(lines)


def _title(shape: ModelShape) -> str:
    active = shape.active_parameters
    parameters = f"{shape.parameters.total / 1e9:.2f} B parameters"
    if active != shape.parameters.total:
        parameters += f" ({active / 1e9:.2f} B at work on a token)"
    heads = f"{shape.num_heads} heads of {shape.head_dim} on {shape.num_kv_heads} KV heads"
    if shape.is_latent:
        heads = f"{shape.num_heads} heads on a latent of {shape.kv_layers[0].key_dim}"
    return (
        f"{shape.name}: {parameters}, {shape.num_layers} layers, {heads}, context of "
        f"{shape.max_model_len} tokens"
    )


def _table(fit: Fit) -> Iterator[str]:
    """Requests at once, by length."""
    reserved = f"reserved {fit.max_model_len}"
    rows = [(f"{fit.max_model_len} tokens (max_model_len)", fit.at_max_model_len)]
    for lengths, one in zip(fit.settings.requests, fit.requests, strict=True):
        rows.append((_lengths(lengths), one))
    if fit.mix:
        rows.append((f"mix, {fit.mix.mean_tokens:.0f} tokens on average", fit.mix.together))
        rows.append((f"all as its median, {_lengths(fit.mix.p50)}", fit.mix.at_p50))
        rows.append((f"all as its 95th percentile, {_lengths(fit.mix.p95)}", fit.mix.at_p95))
    wide = max(len(name) for name, _ in rows)
    yield f"  {'requests at once':{wide}}  {'all complete':>12}  {'on average':>10}  {reserved:>16}"
    for name, one in rows:
        yield f"  {name:{wide}}  {_row(one)}"
    yield "  all complete: every request at its last token; on average: as they come and go;"
    yield "  reserved: contiguous memory for the longest, with the share that is never used"


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.num_prompt_tokens} + {lengths.num_output_tokens} tokens"


def _row(one: RequestFit) -> str:
    if not one.full:
        return f"{'never':>12}  {'':>10}  {'':>16}"
    reserved = f"{one.contiguous} ({one.contiguous_waste:.0%})"
    return f"{one.full:12.1f}  {one.average:10.1f}  {reserved:>16}"


def as_json(fit: Fit) -> dict[str, Any]:
    shape, settings, sizing = fit.shape, fit.settings, fit.sizing
    mix = fit.mix
    return {
        "model": {
            "name": shape.name,
            "source": shape.source,
            "parameters": shape.parameters.total,
            "active_parameters": shape.active_parameters,
            "num_layers": shape.num_layers,
            "num_window_layers": shape.num_window_layers,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "context_length": shape.max_model_len,
            "weights_dtype": fit.weights_dtype,
        },
        "memory": {
            "total": fit.budget.memory,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "usable": fit.budget.usable,
            "weights": fit.budget.weights,
            "overhead": fit.budget.overhead,
            "kv_cache": fit.budget.kv,
            "tensor_parallel_size": settings.tensor_parallel_size,
        },
        "kv_cache": {
            "dtype": fit.kv_dtype,
            "bytes_per_token": round(sizing.bytes_per_token),
            "block_size": settings.block_size,
            "block_bytes": sizing.block_bytes,
            "num_blocks": fit.num_blocks,
            "num_tokens": fit.num_tokens,
            "longest_request": fit.longest,
        },
        "max_model_len": fit.max_model_len,
        "at_max_model_len": _json(fit.at_max_model_len),
        "at_max_model_len_windows_kept": round(fit.unfreed, 2),
        "requests": [
            {"prompt": one.num_prompt_tokens, "output": one.num_output_tokens, "share": one.share}
            | _json(result)
            for one, result in zip(settings.requests, fit.requests, strict=True)
        ],
        "mix": mix
        and {
            "mean_tokens": round(mix.mean_tokens, 1),
            **_json(mix.together),
            "p50": {"tokens": mix.p50.num_tokens, **_json(mix.at_p50)},
            "p95": {"tokens": mix.p95.num_tokens, **_json(mix.at_p95)},
        },
        "warnings": [warning._asdict() for warning in warnings(fit)],
        "arithmetic": [f"{line.what}: {line.formula} = {line.value}" for line in arithmetic(fit)],
    }


def _json(one: RequestFit) -> dict[str, Any]:
    return {
        "requests": round(one.full, 2),
        "requests_on_average": round(one.average, 2),
        "requests_contiguous": one.contiguous,
        "blocks_per_request": round(one.num_blocks, 2),
        "waste": round(one.paged_waste, 4),
        "waste_contiguous": round(one.contiguous_waste, 4),
    }
