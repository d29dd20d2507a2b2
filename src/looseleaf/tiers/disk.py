"""The disk tier of one engine: reads at once, writes behind its back."""

import logging
import math
import queue
import sqlite3
import threading
import time
from pathlib import Path

from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave
from looseleaf.tiers.block_file import BlockFile, DamagedBlockError, is_damage, start_afresh
from looseleaf.tiers.host import Kept, Named, holds

logger = logging.getLogger(__name__)

QUEUE_BYTES = 256 * 2**20
"""Of blocks on their way to the disk. What comes while they are as many is not kept."""

BATCH_BYTES = 4 * 2**20
"""Of blocks that are written in one transaction."""

REFRESH_SECONDS = 1.0
"""How often it is looked what other processes have written."""

RETRY_SECONDS = 30.0
"""How long nothing is written after the disk has refused something."""


class DiskStore:
    """The blocks of one space in the file of a folder.

    `has`, `get` and `put` belong to one thread and never wait for a write. Whatever goes wrong is
    a miss and a warning in the log: with one block, with the file (it is made anew), with the disk.
    """

    def __init__(self, folder: Path, limit: int, space: str) -> None:
        """Raises ConfigError for a folder or limit that cannot be used."""
        self._folder, self._limit, self._space_name = folder, limit, space
        self.num_dropped = 0
        self.num_damaged = 0
        # Both threads use what follows; single operations on it need no lock, but several do.
        self._lock = threading.Lock()
        self._index: dict[bytes, Named] = {}
        self._pending: dict[bytes, Kept] = {}
        self._pending_bytes = 0
        self._used: set[bytes] = set()
        self._unusable: set[bytes] = set()
        self._generation = 0
        self._reader, self._space = self._open()
        self._read_generation = 0
        self._last_number = self._last_version = 0
        self._next_refresh = 0.0
        self._resume_time = 0.0
        self._warned: dict[str, float] = {}
        self._refresh()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_behind, name="kv-disk", daemon=True)
        self._writer.start()

    def __len__(self) -> int:
        return len(self._index)

    def has(self, key: BlockKey) -> bool:
        self._refresh()
        kept = self._pending.get(key.hash)
        named = kept[0] if kept is not None else self._index.get(key.hash)
        return named is not None and holds(named, key)

    def get(self, block_hash: bytes) -> bytes | None:
        """The block's bytes. None, and it is not there any more, if it was removed or damaged."""
        kept = self._pending.get(block_hash)
        if kept is not None:
            return kept[1]
        data = None
        try:
            data = self._reader.read(self._space, block_hash)
        except DamagedBlockError:
            self.num_damaged += 1
            self._warn("a block is damaged, and computed again")
            self.forget(block_hash)
        except sqlite3.Error as error:
            self.num_damaged += 1
            self._failed(error, "read", self._read_generation)
        if data is None:
            self._index.pop(block_hash, None)
        else:
            with self._lock:
                self._used.add(block_hash)
        return data

    def forget(self, block_hash: bytes) -> None:
        """It is of no use: never find it again."""
        with self._lock:
            self._index.pop(block_hash, None)
            kept = self._pending.pop(block_hash, None)
            if kept is not None:
                self._pending_bytes -= len(kept[1])
            self._unusable.add(block_hash)

    def clear(self) -> None:
        """Find nothing of what was put or written so far."""
        with self._lock:
            self._index.clear()
            self._pending.clear()
            self._pending_bytes = 0

    def put(self, save: BlockSave, data: bytes) -> None:
        if save.hash in self._pending:
            return
        if save.hash in self._index:
            with self._lock:
                self._used.add(save.hash)
            return
        if self._pending_bytes + len(data) > QUEUE_BYTES or time.monotonic() < self._resume_time:
            self.num_dropped += 1
            return
        with self._lock:
            self._pending[save.hash] = (save, data)
            self._pending_bytes += len(data)
        self._wake.put(True)

    def make_room(self, seconds: float) -> None:
        """Wait, no longer than so, until much of what was put is written."""
        self._wait(QUEUE_BYTES // 2, seconds)

    def flush(self, seconds: float) -> None:
        """Wait until all that was put is written, but no longer than so."""
        self._wait(0, seconds)

    def _wait(self, num_bytes: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (
            self._pending_bytes > num_bytes
            and self._writer.is_alive()
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)

    def close(self, seconds: float = 10.0) -> None:
        """Write what is pending, for so long at most; closing again does nothing."""
        if self._writer.is_alive():
            self.flush(seconds)
            self._wake.put(False)
            self._writer.join(seconds)
            self._reader.close()

    def num_bytes(self) -> int:
        """What the folder takes on disk, other models' blocks included."""
        return self._reader.num_bytes()

    def _open(self) -> tuple[BlockFile, int]:
        try:
            file = BlockFile(self._folder, self._limit)
            return file, file.space(self._space_name)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            logger.warning("%s is damaged (%s): it is made anew", self._folder, error)
            start_afresh(self._folder)
            file = BlockFile(self._folder, self._limit)
            return file, file.space(self._space_name)

    def _refresh(self) -> None:
        """Take in what others have written, and move on to a new file if there is one."""
        now = time.monotonic()
        if now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        try:
            if self._read_generation != self._generation:
                self._read_generation = self._generation
                self._reader.close()
                self._reader, self._space = self._open()
                self._last_number = self._last_version = 0
            version = self._reader.version()
            if version == self._last_version:
                return
            for known in self._reader.known(self._space, self._last_number):
                self._last_number = known.number
                self._index[known.hash] = known
            self._last_version = version
        except sqlite3.Error as error:
            self._failed(error, "read", self._read_generation)

    def _failed(self, error: sqlite3.Error, what: str, generation: int) -> None:
        """Say so, and write nothing for a while; with a new file, if this one is no good."""
        self._warn(f"it could not {what}: {error}")
        self._resume_time = time.monotonic() + RETRY_SECONDS
        if is_damage(error):
            with self._lock:
                if generation == self._generation:  # the other thread has not done it already
                    self._index.clear()
                    self._generation += 1
                    start_afresh(self._folder)

    def _warn(self, problem: str) -> None:
        """A disk that fails does so often: what is said the same way is said once in a while."""
        now = time.monotonic()
        if now - self._warned.get(problem, -math.inf) >= RETRY_SECONDS:
            self._warned[problem] = now
            logger.warning("the KV disk cache in %s: %s", self._folder, problem)

    def _write_behind(self) -> None:
        """The writer thread: what is pending, in transactions of a few megabytes."""
        file, space, generation = None, 0, -1
        goes_on = True
        while goes_on or self._pending:
            goes_on = goes_on and self._wake.get()
            if not (self._pending or (self._used and not goes_on)):
                continue
            try:
                if file is None or generation != self._generation:
                    generation = self._generation
                    if file is not None:
                        file.close()
                    file, space = self._open()
                self._write(file, space)
            except Exception as error:  # whatever it is, nobody must wait for these
                if isinstance(error, sqlite3.Error):
                    self._failed(error, "write", generation)
                else:
                    logger.exception("the KV disk cache in %s failed", self._folder)
                with self._lock:
                    self.num_dropped += len(self._pending)
                    self._pending.clear()
                    self._pending_bytes = 0
        if file is not None:
            file.close()

    def _write(self, file: BlockFile, space: int) -> None:
        batch: list[Kept] = []
        size = 0
        with self._lock:
            for kept in self._pending.values():
                if batch and size + len(kept[1]) > BATCH_BYTES:
                    break
                batch.append(kept)
                size += len(kept[1])
            used, self._used = self._used, set()
            unusable, self._unusable = self._unusable, set()
        if unusable:
            file.remove(space, unusable)
        if used:
            file.touch(space, used)
        removed = file.write(space, batch)
        with self._lock:
            for save, data in batch:
                if save.hash not in self._unusable:  # since the batch was taken
                    self._index[save.hash] = save
                if self._pending.pop(save.hash, None) is not None:
                    self._pending_bytes -= len(data)
            for block_hash in removed:
                self._index.pop(block_hash, None)
