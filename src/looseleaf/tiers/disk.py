"""The disk tier of one engine: reads at once, writes behind its back."""

import logging
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Collection
from pathlib import Path

from looseleaf.core.errors import ConfigError
from looseleaf.core.hashing import BlockKey
from looseleaf.core.step import BlockSave
from looseleaf.tiers.block_file import (
    BlockFile,
    DamagedBlockError,
    Used,
    is_damage,
    start_afresh,
)
from looseleaf.tiers.host import Named, holds

logger = logging.getLogger(__name__)

QUEUE_BYTES = 256 * 2**20
"""Of blocks on their way to the disk. What comes while they are as many is not kept."""

BATCH_BYTES = 4 * 2**20
"""Of blocks that are written in one transaction."""

REFRESH_SECONDS = 1.0
"""How often it is looked what other processes have written."""

RETRY_SECONDS = 30.0
"""How long nothing is written after the disk has refused something."""

FAILURES = (sqlite3.Error, OSError, ConfigError)
"""What a disk may do to whoever uses it."""


class DiskStore:
    """The blocks of one space in the file of a folder.

    All methods belong to one thread; `has`, `missing`, `get` and `put` never wait for a write.
    Whatever goes wrong once it is made is a miss and a warning in the log: with one block, with the
    file (it is made anew), with the disk.
    """

    def __init__(self, folder: Path, limit: int, space: str) -> None:
        """Raises ConfigError for a folder or limit that cannot be used."""
        self._folder, self._limit, self._space_name = folder, limit, space
        self.num_dropped = 0
        self.num_damaged = 0
        # Both threads use what follows; single operations on it need no lock, but several do.
        self._lock = threading.Lock()
        self._index: dict[bytes, Named] = {}
        self._pending: dict[bytes, Used] = {}
        self._pending_bytes = 0
        self._used: set[bytes] = set()
        self._unusable: set[bytes] = set()
        self._generation = 0
        """Of the file: one more whenever it was made anew."""
        self._warned: dict[str, float] = {}
        self._resume_time = 0.0
        self._reader, self._space = self._open_first()
        self._read_generation = 0
        self._last_number = self._last_version = 0
        self._next_refresh = 0.0
        self._refresh()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_behind, name="kv-disk", daemon=True)
        self._writer.start()

    def __len__(self) -> int:
        return len(self._index)

    def has(self, key: BlockKey) -> bool:
        """As far as is known: somebody else may have removed it."""
        self._refresh()
        kept = self._pending.get(key.hash)
        named = kept[0] if kept is not None else self._index.get(key.hash)
        return named is not None and holds(named, key)

    def missing(self, hashes: Collection[bytes]) -> set[bytes]:
        """Those of the blocks that are gone, whoever removed them; `has` knows it from then on."""
        written = [h for h in hashes if h not in self._pending]
        try:
            gone = set(written) - self._reader.existing(self._space, written)
        except FAILURES as error:
            self._failed(error, "read", self._read_generation, self._reader.inode)
            gone = set(written)
        with self._lock:
            for block_hash in gone:
                self._index.pop(block_hash, None)
        return gone

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
        except FAILURES as error:
            self.num_damaged += 1
            self._failed(error, "read", self._read_generation, self._reader.inode)
        with self._lock:
            if data is None:
                self._index.pop(block_hash, None)
            else:
                self._used.add(block_hash)
        return data

    def put(self, save: BlockSave, data: bytes, used: float | None = None) -> None:
        """Keep a block that was last used at this time (seconds since 1970), or now."""
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
            self._pending[save.hash] = (save, data, time.time() if used is None else used)
            self._pending_bytes += len(data)
        self._wake.put(True)

    def forget(self, block_hash: bytes) -> None:
        """It is of no use: never find it again."""
        with self._lock:
            self._index.pop(block_hash, None)
            kept = self._pending.pop(block_hash, None)
            if kept is not None:
                self._pending_bytes -= len(kept[1])
            self._unusable.add(block_hash)

    def clear(self, seconds: float = 5.0) -> None:
        """Find nothing of what was put or written so far. Waits for the writer, so long at most."""
        self.flush(seconds)
        with self._lock:
            self._index.clear()
            self._pending.clear()
            self._pending_bytes = 0
        try:
            self._last_number = self._reader.last_number()
        except FAILURES as error:
            self._failed(error, "read", self._read_generation, self._reader.inode)

    def make_room(self, seconds: float) -> None:
        """Wait, no longer than so, until much of what was put is written."""
        self._wait(QUEUE_BYTES // 2, seconds)

    def flush(self, seconds: float) -> None:
        """Wait until all that was put is written, but no longer than so."""
        self._wait(0, seconds)

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

    def _wait(self, num_bytes: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (
            self._pending_bytes > num_bytes
            and self._writer.is_alive()
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)

    def _open_first(self) -> tuple[BlockFile, int]:
        try:
            return self._open()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise ConfigError(
                    f"{self._folder} cannot be used for the KV disk cache: {error}"
                ) from None
            self._warn(f"the file is damaged ({error}), and made anew")
        start_afresh(self._folder, None)
        return self._open()

    def _open(self) -> tuple[BlockFile, int]:
        file = BlockFile(self._folder, self._limit)
        try:
            return file, file.space(self._space_name)
        except BaseException:
            file.close()
            raise

    def _refresh(self) -> None:
        """Take in what others have written, and move on to a new file if there is one."""
        now = time.monotonic()
        if now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        try:
            if self._read_generation != self._generation:
                generation = self._generation
                file, space = self._open()
                self._reader.close()
                self._reader, self._space, self._read_generation = file, space, generation
                self._last_number = self._last_version = 0
            version = self._reader.version()
            if version == self._last_version:
                return
            for known in self._reader.known(self._space, self._last_number):
                self._last_number = known.number
                if known.hash not in self._unusable:
                    self._index[known.hash] = known
            self._last_version = version
        except FAILURES as error:
            self._failed(error, "read", self._read_generation, self._reader.inode)

    def _failed(self, error: Exception, what: str, generation: int, inode: int | None) -> None:
        """Say so; and make the file anew, if it is no good and nobody has done it yet."""
        self._warn(f"it could not {what}: {error}")
        if not (isinstance(error, sqlite3.Error) and is_damage(error)):
            return
        with self._lock:
            if generation != self._generation:
                return
            self._index.clear()
            self._generation += 1
            try:
                start_afresh(self._folder, inode)
            except OSError as problem:
                self._warn(f"the damaged file cannot be removed: {problem}")

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
                    current = self._generation
                    opened, space = self._open()
                    if file is not None:
                        file.close()
                    file, generation = opened, current
                self._write(file, space)
            except Exception as error:  # whatever it is, nobody must wait for these
                self._resume_time = time.monotonic() + RETRY_SECONDS
                if isinstance(error, FAILURES):
                    in_use = file is not None and generation == self._generation
                    inode = file.inode if file is not None and in_use else None
                    self._failed(error, "write", self._generation, inode)
                else:
                    logger.exception("the KV disk cache in %s failed", self._folder)
                with self._lock:
                    self.num_dropped += len(self._pending)
                    self._pending.clear()
                    self._pending_bytes = 0
        if file is not None:
            file.close()

    def _write(self, file: BlockFile, space: int) -> None:
        batch: list[Used] = []
        size = 0
        with self._lock:
            for kept in self._pending.values():
                if batch and size + len(kept[1]) > BATCH_BYTES:
                    break
                batch.append(kept)
                size += len(kept[1])
            used, self._used = self._used, set()
            unusable = self._unusable.copy()
        if unusable:
            file.remove(space, unusable)
        if used:
            file.touch(space, used)
        removed = file.write(space, batch)
        with self._lock:
            self._unusable -= unusable
            for block_hash in removed:
                self._index.pop(block_hash, None)
            for save, data, _ in batch:
                # What was forgotten meanwhile is not pending any more.
                if self._pending.pop(save.hash, None) is not None:
                    self._pending_bytes -= len(data)
                    self._index[save.hash] = save
