"""`looseleaf perplexity`"""

import argparse
from pathlib import Path
from typing import Any

from looseleaf.bench.machine import machine
from looseleaf.bench.perplexity import (
    Scores,
    Window,
    comparison,
    cut_windows,
    evaluate,
    summary,
)
from looseleaf.bench.progress import progress
from looseleaf.commands.options import (
    add_execution,
    add_json,
    add_model,
    execution_settings,
    from_utf8,
    print_json,
    read_stdin,
)
from looseleaf.core.errors import ConfigError, LooseleafError
from looseleaf.engine.build import load_text, resolve_settings
from looseleaf.engine.settings import EXECUTORS, EngineSettings
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say how well a model predicts a text: exp of the mean negative log-likelihood of its "
        "tokens, in windows of which the second half is scored, as llama.cpp's tool does. Lower is "
        "better; figures compare for the same text, tokenizer and context only."
    )
    parser.epilog = "An example: looseleaf perplexity wiki.test.raw --compare reference"
    parser.add_argument("file", metavar="FILE", help="the text, or - for standard input")
    add_model(parser)
    add_json(parser)
    parser.add_argument(
        "--context", type=int, default=512, metavar="TOKENS", help="tokens of a window"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=20_000,
        metavar="TOKENS",
        help="take no more than that of the beginning of the text",
    )
    parser.add_argument(
        "--compare",
        choices=EXECUTORS,
        help="compute the same on a second executor and say how far they agree",
    )
    add_execution(parser)


def run(options: argparse.Namespace) -> None:
    windows = _windows(options)
    settings = resolve_settings(execution_settings(options))
    scores = _evaluate(settings, windows)
    result: dict[str, Any] = {
        **summary(scores),
        "num_scored_tokens": len(scores.nll),
        "num_windows": len(windows),
        "context": options.context,
        "executor": settings.executor,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "activations": settings.activations,
        "model": options.model,
    }
    if options.compare is not None:
        # The second one as it is by default: the options are for the first.
        compared = resolve_settings(
            EngineSettings(
                model=options.model, executor=options.compare, cache_dir=options.cache_dir
            )
        )
        other = _evaluate(compared, windows)
        result["compare"] = {"executor": compared.executor, **comparison(scores, other)}
    result["machine"] = machine()
    if options.json:
        print_json(result)
    else:
        _show(result)


def _windows(options: argparse.Namespace) -> list[Window]:
    """Whatever is wrong with the text is said before any weights are loaded."""
    if options.file == "-":
        text = read_stdin("the text")
    else:
        text = from_utf8(_read(options.file), options.file)
    with GGUFFile(resolve(options.model, cache_dir=options.cache_dir)) as file:
        limit = file.metadata.get(f"{file.architecture}.context_length", options.context)
        tokenizer = load_text(file).tokenizer
    if options.context > limit:
        raise ConfigError(
            f"--context is {options.context}, but the model's context is {limit} tokens: set it to "
            f"{limit} or less"
        )
    return cut_windows(tokenizer, text, context=options.context, max_tokens=options.max_tokens)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LooseleafError(f"cannot read {path}: {error.strerror}") from None


def _evaluate(settings: EngineSettings, windows: list[Window]) -> Scores:
    with progress(f"windows, {settings.executor} executor", len(windows)) as advance:
        return evaluate(settings, windows, advance)


def _show(result: dict[str, Any]) -> None:
    print(
        f"perplexity {result['perplexity']:.4f} +- {result['standard_error']:.4f}: "
        f"{result['model']} on the {result['executor']} executor, {result['num_scored_tokens']} "
        f"tokens scored in {result['num_windows']} windows of {result['context']}"
    )
    other = result.get("compare")
    if other is not None:
        print(
            f"perplexity {other['perplexity']:.4f} +- {other['standard_error']:.4f} on the "
            f"{other['executor']} executor: a ratio of {other['ratio']:.5f}, and the same most "
            f"likely token in {other['same_most_likely']:.2%} of the places"
        )
