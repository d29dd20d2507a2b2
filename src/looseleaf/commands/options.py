"""Options that several commands share, under vLLM's names where it has them."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from looseleaf.core.errors import LooseleafError
from looseleaf.core.policy import POLICIES
from looseleaf.engine.settings import (
    ACTIVATIONS,
    EXECUTORS,
    KV_ALLOCATORS,
    KV_CACHE_DTYPES,
    PREEMPTION_MODES,
    EngineSettings,
    memory_range,
    parse_bytes,
)
from looseleaf.sampling.params import SamplingParams, StructuredOutputs

DEFAULTS = EngineSettings()

MODEL_HELP = "a known name, a path to a .gguf file, or hf:ORG/REPO[:FILE]"

_Read = TypeVar("_Read")
_Number = Callable[[int], Callable[[str], int]]


def _number(_: int) -> Callable[[str], int]:
    """In the place of `at_least` for what EngineSettings checks: it says more of each setting."""
    return int


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        "-m",
        default=DEFAULTS.model,
        help=MODEL_HELP,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Everything in EngineSettings but the model."""
    memory = parser.add_argument_group("memory")
    add_block_size(memory)
    memory.add_argument(
        "--kv-cache-memory",
        type=_memory_range,
        metavar="SIZE|MIN:MAX",
        help="memory for the KV cache, like 2GiB (default: 40%% of what is available, at most what "
        "--max-num-seqs full-length requests could use); with 256MiB:2GiB, a server without work "
        "gives back what is more than the first",
    )
    add_max_model_len(memory)
    add_block_use(memory)
    memory.add_argument(
        "--pin-budget",
        type=float,
        metavar="SHARE",
        default=DEFAULTS.pin_budget,
        help="share of the KV cache that pinned prefixes may hold, from 0 to 0.9",
    )
    memory.add_argument(
        "--swap-space",
        type=swap_size,
        metavar="SIZE",
        help="memory for blocks that no longer fit into the KV cache, of preempted requests and of "
        "earlier prompts, like 512MiB; a number alone is GiB (default: none)",
    )
    add_preemption_mode(memory)
    memory.add_argument(
        "--kv-disk",
        type=Path,
        metavar="FOLDER",
        help="keep blocks that no longer fit into memory in this folder, also for later starts",
    )
    add_disk_size(memory)
    scheduling = parser.add_argument_group("scheduling")
    scheduling.add_argument(
        "--max-num-seqs", type=int, default=DEFAULTS.max_num_seqs, help="most sequences in a step"
    )
    scheduling.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=DEFAULTS.max_num_batched_tokens,
        help="most tokens in a step; longer prompts are computed in chunks",
    )
    add_order(scheduling)
    scheduling.add_argument(
        "--speculative-ngram",
        type=int,
        metavar="TOKENS",
        default=DEFAULTS.speculative_ngram,
        help="guess up to so many tokens of each request from what came before in it, and check "
        "them all in one step: the same answers, sooner where text repeats (0 is off)",
    )
    add_execution(parser)


def add_block_size(group: argparse._ArgumentGroup, number: _Number = _number) -> None:
    """Like the next ones also for `plan` and `fit`, where `number` is `at_least`."""
    group.add_argument(
        "--block-size", type=number(1), default=DEFAULTS.block_size, help="tokens in a KV block"
    )


def add_max_model_len(group: argparse._ArgumentGroup, number: _Number = _number) -> None:
    group.add_argument(
        "--max-model-len",
        type=number(2),
        metavar="TOKENS",
        help="most tokens of prompt and output together (default: the model's context, or what "
        "fits into the KV cache)",
    )


def add_disk_size(memory: argparse._ArgumentGroup) -> None:
    memory.add_argument(
        "--kv-disk-size",
        type=memory_size,
        metavar="SIZE",
        default=DEFAULTS.kv_disk_size,
        help="most bytes that the folder may take",
    )


def add_block_use(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.enable_prefix_caching,
        help="keep and share the KV of equal beginnings",
    )
    group.add_argument(
        "--kv-allocator",
        choices=KV_ALLOCATORS,
        default=DEFAULTS.kv_allocator,
        help="paged blocks, or one of the old ways to reserve, for comparison",
    )


def add_preemption_mode(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--preemption-mode",
        choices=PREEMPTION_MODES,
        default=DEFAULTS.preemption_mode,
        help="what becomes of a request that gave way: loaded from the swap space or computed "
        "again, or whatever takes less time (auto)",
    )


def add_order(group: argparse._ArgumentGroup, number: _Number = _number) -> None:
    """What the scheduler goes by within the limits of a step."""
    group.add_argument(
        "--long-prefill-token-threshold",
        type=number(1),
        metavar="TOKENS",
        help="most tokens of a step that long prompts get while others could use them (default: "
        "half of --max-num-batched-tokens)",
    )
    group.add_argument(
        "--admission-headroom",
        type=number(0),
        default=DEFAULTS.admission_headroom,
        metavar="TOKENS",
        help="admit a request only if each running one could grow by so much; 0 admits whatever "
        "fits, which may be preempted soon",
    )
    group.add_argument(
        "--scheduling-policy",
        choices=tuple(POLICIES),
        default=DEFAULTS.scheduling_policy,
        help="who goes first",
    )


def add_execution(parser: argparse.ArgumentParser) -> None:
    execution = parser.add_argument_group("execution")
    execution.add_argument(
        "--executor",
        choices=EXECUTORS,
        default=DEFAULTS.executor,
        help="who does the arithmetic: C++ on packed weights (native), or NumPy in float32 "
        "(reference, slow); auto is native where it is installed",
    )
    execution.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the native executor (default: the physical cores this process may use)",
    )
    execution.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default=DEFAULTS.activations,
        help="what the native executor multiplies quantized weights with; f32 is slower, and as "
        "close to the reference as float32 gets",
    )
    execution.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default=DEFAULTS.kv_cache_dtype,
        help="how keys and values are stored; auto is int16 (native) or f32 (reference)",
    )
    execution.add_argument(
        "--cache-weights",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.cache_weights,
        help="native executor: keep the weights as it needs them in the cache folder, for later "
        "starts",
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        action="store_true",
        help="say where the time of the native executor went: by pass, by layer, and against the "
        "machine's roofline",
    )


def add_sampling(
    parser: argparse.ArgumentParser, *, max_tokens: int | None, temperature: float
) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, default=max_tokens, help="most tokens to generate")
    group.add_argument("--temperature", type=float, default=temperature, help="0 is greedy")
    group.add_argument("--top-k", type=int, default=0, help="0 is off")
    group.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    group.add_argument("--min-p", type=float, default=0.0, help="0 is off")
    group.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="P", help="-2 to 2; 0 is off"
    )
    group.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="P", help="-2 to 2; 0 is off"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="P",
        help="counts the prompt too; 1 is off",
    )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID=BIAS",
        help="added to the logit of a token, -100 to 100; may be repeated",
    )
    group.add_argument(
        "--bad-word",
        action="append",
        default=[],
        metavar="TEXT",
        help="never generate it; may be repeated",
    )
    group.add_argument(
        "--allowed-token-ids",
        type=_ids,
        metavar="ID,ID...",
        help="generate nothing but these tokens",
    )
    group.add_argument(
        "--json-schema", metavar="SCHEMA", help="generate JSON of this schema, and nothing else"
    )
    group.add_argument("--regex", help="generate what matches, and nothing else")
    group.add_argument(
        "--choice",
        action="append",
        metavar="TEXT",
        help="generate one of these; repeat it for each",
    )
    group.add_argument("--grammar", help="generate what this grammar, in Lark's notation, allows")
    group.add_argument("--seed", type=int, help="the same seed gives the same answer")
    group.add_argument(
        "--min-tokens", type=int, default=0, help="do not stop before so many are generated"
    )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop there; may be repeated"
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on through the model's end tokens"
    )


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no token id and bias, like 198=-5") from None


def _ids(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no token ids, like 1,2,3") from None


def execution_settings(options: argparse.Namespace, **more: Any) -> EngineSettings:
    """Of a model and `add_execution`."""
    return EngineSettings(
        model=options.model,
        executor=options.executor,
        threads=options.threads,
        activations=options.activations,
        kv_cache_dtype=options.kv_cache_dtype,
        cache_dir=options.cache_dir,
        cache_weights=options.cache_weights,
        **more,
    )


def engine_settings(options: argparse.Namespace) -> EngineSettings:
    return execution_settings(
        options,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        admission_headroom=options.admission_headroom,
        kv_cache_memory=options.kv_cache_memory,
        kv_allocator=options.kv_allocator,
        pin_budget=options.pin_budget,
        swap_space=options.swap_space,
        preemption_mode=options.preemption_mode,
        kv_disk=options.kv_disk,
        kv_disk_size=options.kv_disk_size,
        enable_prefix_caching=options.enable_prefix_caching,
        scheduling_policy=options.scheduling_policy,
        speculative_ngram=options.speculative_ngram,
    )


def _structured_outputs(options: argparse.Namespace) -> StructuredOutputs | None:
    asked = {
        "json": options.json_schema,
        "regex": options.regex,
        "choice": None if options.choice is None else tuple(options.choice),
        "grammar": options.grammar,
    }
    if all(value is None for value in asked.values()):
        return None
    return StructuredOutputs(**asked)


def sampling_params(options: argparse.Namespace, **more: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        logit_bias=dict(options.logit_bias),
        bad_words=tuple(options.bad_word),
        allowed_token_ids=options.allowed_token_ids,
        structured_outputs=_structured_outputs(options),
        seed=options.seed,
        min_tokens=options.min_tokens,
        stop=tuple(options.stop),
        ignore_eos=options.ignore_eos,
        **more,
    )


def read_stdin(what: str) -> str:
    """All of standard input as text, exactly; raises LooseleafError if it is a terminal."""
    if sys.stdin.isatty():
        raise LooseleafError(f"give {what} on standard input")
    return from_utf8(sys.stdin.buffer.read(), "standard input")


def from_utf8(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LooseleafError(f"{what} is not UTF-8: byte {error.start} cannot be decoded") from None


def parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise LooseleafError(f"{what} is not JSON: {error}") from None


def print_json(value: Any) -> None:
    """On one line of standard output, escaped where its encoding does not have a character."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value)
    print(text)


def at_least(minimum: int) -> Callable[[str], int]:
    """For `type=` of an option that takes a whole number."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"it is {value}, but it must be at least {minimum}")
        return value

    return parse


def read_by(parse: Callable[[str], _Read]) -> Callable[[str], _Read]:
    """For `type=` of an option: `parse`, whose LooseleafError becomes argparse's."""

    def read(text: str) -> _Read:
        try:
            return parse(text)
        except LooseleafError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


memory_size = read_by(parse_bytes)


def _memory_range(text: str) -> int | str:
    if ":" not in text:
        return memory_size(text)
    read_by(memory_range)(text)
    return text


def swap_size(text: str) -> int:
    """For `type=` of an option: like `memory_size`, but a number alone is GiB, as vLLM has it."""
    return memory_size(f"{text}GiB" if text.strip().replace(".", "", 1).isdigit() else text)
