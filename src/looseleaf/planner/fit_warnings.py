"""What a sizing should tell before it becomes an outage."""

from collections.abc import Iterator
from typing import NamedTuple

from looseleaf.engine.settings import format_bytes
from looseleaf.planner.fit import Fit
from looseleaf.planner.lengths import Lengths

MUCH_WASTE = 0.1
"""Of what requests take, in the ends of their last blocks."""

LITTLE_LEFT = 0.97
"""With a higher share of the memory, other programs and fragmentation have too little."""


class FitWarning(NamedTuple):
    code: str
    message: str


def warnings(fit: Fit) -> list[FitWarning]:
    return [FitWarning(code, message) for code, message in _all(fit)]


def _all(fit: Fit) -> Iterator[tuple[str, str]]:
    yield from _lengths(fit)
    yield from _prefix(fit)
    yield from _model(fit)
    yield from _settings(fit)
    for note in fit.shape.notes:
        yield "model", note


def _lengths(fit: Fit) -> Iterator[tuple[str, str]]:
    size = fit.settings.block_size
    if fit.settings.max_model_len is None and fit.max_model_len < fit.shape.max_model_len:
        needed = fit.sizing.request_bytes(fit.shape.max_model_len - 1)
        yield (
            "max_model_len",
            f"one request of the model's whole context of {fit.shape.max_model_len} tokens needs "
            f"{format_bytes(needed)} of KV cache: taken here is max_model_len {fit.max_model_len}, "
            "as looseleaf does; engines that do not lower it refuse to start without "
            f"--max-model-len {fit.max_model_len}",
        )
    if fit.max_model_len > fit.shape.max_model_len:
        yield (
            "context",
            f"max_model_len {fit.max_model_len} is more than the model's context of "
            f"{fit.shape.max_model_len} tokens: it needs RoPE scaling",
        )
    for lengths, one in zip(fit.settings.requests, fit.requests, strict=True):
        if not one.full:
            yield "never_fits", _never(fit, lengths)
        elif one.paged_waste > MUCH_WASTE:
            yield (
                "block_size",
                f"requests of {lengths} leave {one.paged_waste:.0%} of their blocks of {size} "
                "tokens empty: use smaller blocks",
            )


def _never(fit: Fit, lengths: Lengths) -> str:
    if lengths.num_tokens > fit.max_model_len:
        return (
            f"a request of {lengths} can never run: its {lengths.num_tokens} tokens are more than "
            f"max_model_len {fit.max_model_len}"
        )
    needed = fit.sizing.request_bytes(lengths.num_stored)
    return (
        f"a request of {lengths} can never run: it needs {format_bytes(needed)} of KV cache, and "
        f"there are {format_bytes(fit.budget.kv)}"
    )


def _prefix(fit: Fit) -> Iterator[tuple[str, str]]:
    prefix, size = fit.settings.shared_prefix, fit.settings.block_size
    if not prefix:
        return
    if prefix < size:
        yield (
            "prefix",
            f"the shared prefix of {prefix} tokens is shorter than a block of {size}: it saves no "
            "memory, and engines that share whole blocks only never find it",
        )
    elif prefix % size:
        yield (
            "prefix",
            f"the last {prefix % size} tokens of the shared prefix do not fill a block of {size}: "
            f"{prefix - prefix % size} are stored once",
        )
    for lengths in fit.settings.requests:
        if lengths.num_prompt_tokens <= prefix:
            yield (
                "prefix",
                f"the shared prefix of {prefix} tokens is not shorter than the prompt of "
                f"{lengths}: the last token of a prompt is always computed and stored",
            )


def _model(fit: Fit) -> Iterator[tuple[str, str]]:
    shape, parallel = fit.shape, fit.settings.tensor_parallel_size
    if shape.num_window_layers:
        windows = sorted({layer.window for layer in shape.kv_layers if layer.window is not None})
        yield (
            "windows",
            f"{shape.num_window_layers} of {shape.num_layers} layers see a window of "
            f"{' or '.join(map(str, windows))} tokens, and are taken to free the blocks behind it: "
            f"an engine that keeps them, as looseleaf does, fits {fit.unfreed:.1f} requests of "
            f"{fit.max_model_len} tokens instead of {fit.at_max_model_len.full:.1f}",
        )
    heads = min(layer.num_heads for layer in shape.kv_layers)
    if parallel > heads:
        what = "the latent of all heads" if shape.is_latent else f"each of {heads} KV heads"
        yield (
            "replicated_kv",
            f"{what} is stored {parallel // heads} times on {parallel} devices: more of them leave "
            "no more room for it; replicas of the model (data parallelism) would",
        )


def _settings(fit: Fit) -> Iterator[tuple[str, str]]:
    settings = fit.settings
    if fit.budget.usable > LITTLE_LEFT * settings.memory:
        yield (
            "utilization",
            f"only {format_bytes(settings.memory - fit.budget.usable)} of "
            f"{format_bytes(settings.memory)} are left to other programs and to fragmentation: "
            "expect to run out of memory at a peak",
        )
    typical = fit.mix.together if fit.mix else next(iter(fit.requests), None)
    most = settings.max_num_seqs
    if most is not None and typical is not None and 0 < typical.average < most:
        yield (
            "max_num_seqs",
            f"{most} sequences may run (max_num_seqs), but {typical.average:.0f} "
            "of these requests fit: further ones wait, or preempt others, which are computed again",
        )
