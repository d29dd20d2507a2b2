"""The tiers that settings ask for, and what their blocks belong to."""

import hashlib
import json
import time
from pathlib import Path

from looseleaf import __version__
from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings, num_bytes_of
from looseleaf.models.config import ModelConfig
from looseleaf.tiers.host import HostStore
from looseleaf.tiers.tiers import KVTiers
from looseleaf.tiers.virtual_disk import DiskSpeed, SteppedClock, VirtualDisk
from looseleaf.weights.gguf import GGUFFile

_YOUNG_FILE_SECONDS = 2.5


def kv_space(settings: EngineSettings, file: GGUFFile, config: ModelConfig) -> str:
    """Everything that the bytes of a block depend on besides its tokens, as a JSON object. Raises
    ConfigError for a model file that is being written to."""
    layout = None
    if settings.executor == "native":
        from looseleaf.executors.native import native_module

        layout = native_module().LAYOUT_VERSION
    return json.dumps(
        {
            "model": config.name,
            "file": _identity(file),
            "executor": settings.executor,
            "activations": settings.activations,
            "kv_cache_dtype": settings.kv_cache_dtype,
            "block_size": settings.block_size,
            "layout": layout,
            "looseleaf": __version__,
        }
    )


def space_secret(space: str) -> bytes:
    """Where the chains of hashes of a space start: in every process at the same place."""
    return hashlib.sha256(space.encode()).digest()


def planned_tiers(
    settings: EngineSettings, memory: MemoryPlan, clock: SteppedClock, disk_speed: DiskSpeed
) -> KVTiers | None:
    """Those of an engine on that clock with blocks that hold nothing, if the settings want any. The
    folder of the disk is not looked at. Raises ConfigError if it may take too little."""
    host = disk = None
    if settings.swap_space is not None:
        host = HostStore(num_bytes_of(settings.swap_space), memory.block_bytes)
    if settings.kv_disk is not None:
        from looseleaf.tiers.block_file import room_for_blocks
        from looseleaf.tiers.disk import QUEUE_BYTES

        room = room_for_blocks(num_bytes_of(settings.kv_disk_size))
        disk = VirtualDisk(room, QUEUE_BYTES, memory.block_bytes, disk_speed, clock)
    if host is None and disk is None:
        return None
    always = settings.preemption_mode == "swap"
    return KVTiers(
        memory.block_size,
        memory.block_bytes,
        host,
        disk,
        always_load=always,
        empty=True,
        clock=clock,
    )


def build_tiers(settings: EngineSettings, memory: MemoryPlan, space: str | None) -> KVTiers:
    """`space` is wanted for the disk's alone."""
    host = disk = None
    if settings.swap_space is not None:
        host = HostStore(num_bytes_of(settings.swap_space))
    if settings.kv_disk is not None:
        from looseleaf.tiers.disk import DiskStore  # and with it SQLite, only where it is wanted

        assert space is not None
        disk = DiskStore(Path(settings.kv_disk), num_bytes_of(settings.kv_disk_size), space)
    always = settings.preemption_mode == "swap"
    return KVTiers(memory.block_size, memory.block_bytes, host, disk, always_load=always)


def _identity(file: GGUFFile) -> str:
    deadline = time.monotonic() + _YOUNG_FILE_SECONDS
    while True:
        identity = file.identity()
        if identity is not None:
            return identity
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{file.path} is being changed, so its KV blocks cannot be kept on disk: try again "
                f"when it is complete, or leave kv_disk out"
            )
        time.sleep(0.05)
