"""From settings to a running engine: resolve, load, size the memory, put the parts together."""

import gc
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.compiled import compiled
from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.errors import ConfigError
from looseleaf.core.events import EventLog
from looseleaf.core.hashing import BlockHasher, Hasher, sha256_hasher
from looseleaf.core.scheduler import Scheduler
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.engine.cores import physical_cores
from looseleaf.engine.engine import Engine
from looseleaf.engine.memory import MemoryPlan, plan_memory
from looseleaf.engine.ngram import NgramDrafter
from looseleaf.engine.settings import EngineSettings, format_bytes, num_bytes_of
from looseleaf.executors.base import Executor
from looseleaf.executors.kv_dtype import INTEGER_STEP, INTEGERS, KV_NUMBER_BYTES, scale_bytes
from looseleaf.models.config import ModelConfig
from looseleaf.models.load import load_program, load_weights
from looseleaf.models.registry import architecture
from looseleaf.program.program import Program
from looseleaf.text.chat_template import ChatTemplate
from looseleaf.text.grammar import Grammars
from looseleaf.text.tokenizer import Tokenizer
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import SourceError, default_cache_dir, known_models, resolve

if TYPE_CHECKING:
    from looseleaf.tiers.tiers import KVTiers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedText:
    """What turns text into tokens and back for one model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything that one model's serving needs. `engine` is to be closed by its owner. `settings`
    are those it was built with, with nothing left to "auto"."""

    settings: EngineSettings
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: Grammars
    model_config: ModelConfig
    memory: MemoryPlan


def load_text(file: GGUFFile) -> LoadedText:
    """Tokenizer and chat template from the metadata; reads no weights."""
    tokenizer = Tokenizer.from_gguf(file.metadata)
    return LoadedText(tokenizer, ChatTemplate.from_gguf(file.metadata, tokenizer))


def build_scheduler(
    settings: EngineSettings,
    memory: MemoryPlan,
    events: EventLog | None = None,
    tiers: "KVTiers | None" = None,
    secret: bytes | None = None,
    hasher: Hasher = sha256_hasher,
) -> Scheduler:
    """The bookkeeping alone, for any executor. Chains of hashes start from `secret`."""
    cache = settings.cache_config(memory.num_blocks)
    allocator: KVAllocator
    if settings.kv_allocator == "paged":
        # If it is one of this process, nobody outside can predict a block's hash.
        blocks = BlockHasher(memory.block_size, secret or secrets.token_bytes(32), hasher)
        allocator = BlockTables(cache, blocks, events, tiers)
    else:
        rule = settings.kv_allocator.removeprefix("contiguous-")
        allocator = ContiguousTables(cache, rule, memory.max_model_len, events)
    drafter = NgramDrafter(settings.speculative_ngram) if settings.speculative_ngram else None
    return Scheduler(settings.scheduler_config(memory.max_model_len), allocator, drafter)


def _auto_kv_dtype(settings: EngineSettings) -> str:
    return "f16" if settings.block_size % INTEGER_STEP else "int16"


def _with_kv_dtype_for(settings: EngineSettings, asked: str, config: ModelConfig) -> EngineSettings:
    """What `kv_cache_dtype` is for this model."""
    if settings.kv_cache_dtype not in INTEGERS:
        return settings
    for name, value in (("block_size", settings.block_size), ("head_dim", config.head_dim)):
        if value % INTEGER_STEP == 0:
            continue
        if asked == "auto":
            return replace(settings, kv_cache_dtype="f16")
        raise ConfigError(
            f"kv_cache_dtype is {settings.kv_cache_dtype!r}, which needs a {name} that is a "
            f"multiple of {INTEGER_STEP}, but it is {value}: use f16, or leave it to auto"
        )
    return settings


def resolve_settings(settings: EngineSettings) -> EngineSettings:
    """What "auto" and None mean here, for the executor's settings. Raises ConfigError for what the
    executor cannot do."""
    executor = settings.executor
    if executor == "auto":
        executor = "reference" if compiled() is None else "native"
    dtype = settings.kv_cache_dtype
    if dtype == "auto":
        dtype = _auto_kv_dtype(settings) if executor == "native" else "f32"
    if executor == "reference" and dtype != "f32":
        raise ConfigError(
            f"kv_cache_dtype is {dtype!r}, but the reference executor keeps f32: leave it out, or "
            f"use the native executor"
        )
    return replace(
        settings,
        executor=executor,
        kv_cache_dtype=dtype,
        threads=(settings.threads or physical_cores()) if executor == "native" else 1,
    )


def kv_bytes_per_token(config: ModelConfig, dtype: str) -> int:
    return config.kv_bytes_per_token(KV_NUMBER_BYTES[dtype], scale_bytes(dtype))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For what makes hundreds of thousands of objects that stay: a fifth of the time would go into
    looking for garbage among them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _budget(settings: EngineSettings, weights: int, memory: MemoryPlan) -> str:
    """What the process is going to take, part by part; steps need little besides."""
    parts = {
        "weights": weights,
        "KV cache": memory.num_blocks * memory.block_bytes,
        "swap space": num_bytes_of(settings.swap_space or 0),
    }
    told = " + ".join(f"{format_bytes(size)} {name}" for name, size in parts.items() if size)
    return f"memory: {told} = {format_bytes(sum(parts.values()))} at most"


@without_garbage_collection()
def build(settings: EngineSettings, *, events: EventLog | None = None) -> Stack:
    """Load the model and make an engine for it. Raises LooseleafError for anything a user can
    mend: a name that is unknown, a damaged file, memory that does not suffice."""
    start = time.perf_counter()
    asked = settings.kv_cache_dtype
    settings = resolve_settings(settings)
    path = resolve(_servable(settings.model), cache_dir=settings.cache_dir)
    with GGUFFile(path) as file:
        text = load_text(file)
        config, program = load_program(file)
        settings = _with_kv_dtype_for(settings, asked, config)
        # Sized before the weights are read, so that what cannot fit is said at once.
        memory = plan_memory(
            settings,
            kv_bytes_per_token(config, settings.kv_cache_dtype),
            config.context_length,
            other_bytes=4 * program.num_parameters + num_bytes_of(settings.swap_space or 0),
        )
        tiers, secret = _tiers_and_secret(settings, file, config, memory)
        grammars = Grammars(text.tokenizer)
        executor = _build_executor(settings, file, config, program, memory, grammars)
    scheduler = build_scheduler(settings, memory, events, tiers, secret)
    seconds = time.perf_counter() - start
    logger.info("%s (%s executor) loaded in %.1f s", config.name, settings.executor, seconds)
    logger.info("%s", _budget(settings, path.stat().st_size, memory))
    engine = Engine(scheduler, executor, tiers=tiers, floor_blocks=memory.floor_blocks)
    return Stack(settings, engine, text.tokenizer, text.chat_template, grammars, config, memory)


def _tiers_and_secret(
    settings: EngineSettings, file: GGUFFile, config: ModelConfig, memory: MemoryPlan
) -> "tuple[KVTiers | None, bytes | None]":
    """What keeps blocks outside the pool, and where hashes start if that outlives the process."""
    if settings.swap_space is None and settings.kv_disk is None:
        return None, None
    from looseleaf.engine.tiers import build_tiers, kv_space, space_secret

    space = None if settings.kv_disk is None else kv_space(settings, file, config)
    tiers = build_tiers(settings, memory, space)
    return tiers, None if space is None else space_secret(space)


def _build_executor(
    settings: EngineSettings,
    file: GGUFFile,
    config: ModelConfig,
    program: Program,
    memory: MemoryPlan,
    grammars: Grammars,
) -> Executor:
    """Each executor is imported only where it is wanted: neither needs what the other does."""
    if settings.executor == "native":
        from looseleaf.engine.native_weights import native_weights
        from looseleaf.executors.native import NativeExecutor

        num_threads = settings.threads or 1
        weights = native_weights(
            file,
            config,
            program,
            num_threads=num_threads,
            cache_dir=_weight_cache_dir(settings),
        )
        return NativeExecutor(
            program,
            weights,
            memory.num_blocks,
            memory.block_size,
            max_tokens=settings.max_num_batched_tokens,
            max_positions=memory.max_model_len,
            num_threads=num_threads,
            kv_dtype=settings.kv_cache_dtype,
            activations=settings.activations,
            num_valid_tokens=config.tokenizer_size,
            new_matcher=grammars.matcher,
        )
    from looseleaf.executors.reference import ReferenceExecutor

    return ReferenceExecutor(
        program,
        load_weights(file, config, program),
        memory.num_blocks,
        memory.block_size,
        num_valid_tokens=config.tokenizer_size,
        new_matcher=grammars.matcher,
    )


def _weight_cache_dir(settings: EngineSettings) -> Path | None:
    if not settings.cache_weights:
        return None
    try:
        return settings.cache_dir or default_cache_dir()
    except SourceError:  # no home folder: only models that are given by a path need none
        return None


def _servable(model: str) -> str:
    """The name itself; ConfigError before anything is downloaded that could not be served."""
    known = known_models().get(model)
    if known is not None:
        architecture(known.architecture)
    return model
