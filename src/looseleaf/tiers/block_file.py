"""KV blocks in a file that survives crashes: SQLite does the difficult part.

Blocks are rows, written in transactions: after a crash or a power cut each is there or is not.
SQLite was chosen over plain files because what a folder of files would need (an index, a bound on
the whole, reuse of space, several processes at once, recovery) is what it is known for; over LMDB
because a damaged file makes it return an error, where reading a damaged memory map may end the
process. It comes with Python. It has no checksums of its own, so each block has one.
"""

import fcntl
import hashlib
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.core.step import BlockSave

NAME = "kv-blocks.sqlite"
LOG_BYTES = 16 * 2**20
"""Of the limit, for the write-ahead log and whatever else lies beside the blocks."""
MIN_LIMIT = 4 * LOG_BYTES

_VERSION = 1  # of the tables below
_PAGE_BYTES = 16384
_EVICTED_AT_ONCE = 16
_ASKED_AT_ONCE = 500
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
_BUSY_SECONDS = 2.0
_TABLES = """
CREATE TABLE IF NOT EXISTS space (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS block (
    id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, hash BLOB NOT NULL,
    parent BLOB NOT NULL, tokens BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL,
    UNIQUE (space, hash));
CREATE INDEX IF NOT EXISTS block_used ON block (used);
CREATE TABLE IF NOT EXISTS content (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL, data BLOB NOT NULL);
"""


class DamagedBlockError(Exception):
    """A block that is not what was written."""


class Space(NamedTuple):
    """The blocks of one model, settings and version; `name` is a JSON object that says which.
    `num_bytes` and times (seconds since 1970) are those of its blocks."""

    name: str
    num_blocks: int
    num_bytes: int
    last_used: float


Used = tuple[BlockSave, bytes, float]
"""A block to write, its bytes, and when it was last used, in seconds since 1970."""


class Known(NamedTuple):
    """A block's row, without its content. `number` grows from row to row."""

    number: int
    hash: bytes
    parent_hash: bytes
    token_ids: tuple[int, ...]


class Checked(NamedTuple):
    """What `BlockFile.check` found."""

    num_blocks: int
    num_damaged: int


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is no good any more."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGED or code in _UNREADABLE


def room_for_blocks(limit: int) -> int:
    """Bytes, in a folder of at most `limit`. Raises ConfigError if that is too little."""
    if limit < MIN_LIMIT:
        raise ConfigError(
            f"the KV disk cache may have {limit} bytes, but it needs at least {MIN_LIMIT} "
            f"({MIN_LIMIT >> 20} MiB): give it more"
        )
    return limit - LOG_BYTES


class BlockFile:
    """One connection to the blocks of a folder, for one thread at a time; any number may be open,
    in any number of processes.

    All methods may raise sqlite3.Error. With a `limit`, the folder is kept below so many bytes.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        """Makes what is not there. Raises ConfigError for a folder that cannot be used."""
        self.path = folder / NAME
        self._limit = None if limit is None else room_for_blocks(limit)
        try:
            # For this user alone: the blocks tell what prompts said.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            # In a damaged file bytes may be taken for text, which they are not.
            self._database.text_factory = lambda text: text.decode(errors="replace")
            try:
                self._set_up()
                self.inode = self.path.stat().st_ino
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(
                f"{folder} cannot be used for the KV disk cache ({error}): give a folder that "
                f"this user may write to, and no other program locks"
            ) from None

    def _set_up(self) -> None:
        run = self._database.execute
        run(f"PRAGMA page_size = {_PAGE_BYTES}")
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")  # in WAL mode that is safe against a power cut
        run(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // 4 // _PAGE_BYTES}")
        run(f"PRAGMA journal_size_limit = {LOG_BYTES // 2}")
        if self._limit is not None:
            run(f"PRAGMA max_page_count = {self._limit // _PAGE_BYTES}")
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            with self._transaction():  # of another version of the software: of no use to this one
                for table in ("content", "block", "space"):
                    run(f"DROP TABLE IF EXISTS {table}")
        if version != _VERSION:
            self._database.executescript(_TABLES)
            run(f"PRAGMA user_version = {_VERSION}")
        self._shrink()

    def _shrink(self) -> None:
        """Come down to a limit that is lower than it was when the file grew."""
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        if self._limit is not None and pages * _PAGE_BYTES > self._limit:
            with self._transaction():
                self._make_room(0, 0)
            self._database.execute("PRAGMA incremental_vacuum").fetchall()
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._database.close()

    def space(self, name: str) -> int:
        """The number of the space of this name."""
        run = self._database.execute
        run("INSERT OR IGNORE INTO space (name) VALUES (?)", (name,))
        (number,) = run("SELECT id FROM space WHERE name = ?", (name,)).fetchone()
        return int(number)

    def spaces(self) -> list[Space]:
        """Those that have blocks, the latest used first."""
        rows = self._database.execute(
            "SELECT name, COUNT(block.id), COALESCE(SUM(size), 0), COALESCE(MAX(used), 0) "
            "FROM space LEFT JOIN block ON block.space = space.id GROUP BY space.id ORDER BY 4 DESC"
        )
        return [Space(*row) for row in rows if row[1]]

    def num_bytes(self) -> int:
        """What the folder takes on disk."""
        return sum(path.stat().st_size for path in self.path.parent.glob(NAME + "*"))

    def version(self) -> int:
        """Changes whenever somebody else has written something."""
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    def known(self, space: int, after: int = 0) -> Iterator[Known]:
        """The blocks of a space that were written after number `after`, in order."""
        rows = self._database.execute(
            "SELECT id, hash, parent, tokens FROM block WHERE space = ? AND id > ? ORDER BY id",
            (space, after),
        )
        for number, block_hash, parent, tokens in rows:
            with suppress(TypeError, ValueError):  # damaged: nobody's
                yield Known(number, block_hash, parent, tuple(array("i", tokens)))

    def existing(self, space: int, hashes: Sequence[bytes]) -> set[bytes]:
        """Those of the hashes under which there is a block."""
        found: set[bytes] = set()
        for start in range(0, len(hashes), _ASKED_AT_ONCE):
            asked = hashes[start : start + _ASKED_AT_ONCE]
            places = ", ".join("?" * len(asked))
            rows = self._database.execute(
                f"SELECT hash FROM block WHERE space = ? AND hash IN ({places})", (space, *asked)
            )
            found.update(block_hash for (block_hash,) in rows)
        return found

    def last_number(self) -> int:
        """Of all blocks there are."""
        return int(self._database.execute("SELECT COALESCE(MAX(id), 0) FROM block").fetchone()[0])

    def read(self, space: int, block_hash: bytes) -> bytes | None:
        """What was written under the hash; None if it is gone. Raises DamagedBlockError."""
        row = self._database.execute(
            "SELECT parent, tokens, digest, data FROM block JOIN content USING (id) "
            "WHERE space = ? AND hash = ?",
            (space, block_hash),
        ).fetchone()
        if row is None:
            return None
        parent, tokens, digest, data = row
        if not _is_whole(block_hash, parent, tokens, data, digest):
            raise DamagedBlockError(block_hash.hex())
        return bytes(data)

    def write(self, space: int, blocks: Iterable[Used]) -> list[bytes]:
        """Add blocks, all or none. Returns the hashes that had to go."""
        run, removed = self._database.execute, list[bytes]()
        with self._transaction():
            for save, data, used in blocks:
                removed += self._make_room(len(data), space)
                tokens = array("i", save.token_ids).tobytes()
                added = run(
                    "INSERT OR IGNORE INTO block (space, hash, parent, tokens, size, used) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (space, save.hash, save.parent_hash, tokens, len(data), used),
                )
                if added.rowcount:
                    digest = _digest(save.hash, save.parent_hash, tokens, data)
                    run(
                        "INSERT INTO content (id, digest, data) VALUES (?, ?, ?)",
                        (added.lastrowid, digest, data),
                    )
        return removed

    def touch(self, space: int, hashes: Iterable[bytes]) -> None:
        """They were used now, so they go last."""
        now = time.time()
        with self._transaction():
            self._database.executemany(
                "UPDATE block SET used = ? WHERE space = ? AND hash = ?",
                [(now, space, block_hash) for block_hash in hashes],
            )

    def remove(self, space: int, hashes: Iterable[bytes]) -> None:
        with self._transaction():
            for block_hash in hashes:
                rows = self._database.execute(
                    "SELECT id FROM block WHERE space = ? AND hash = ?", (space, block_hash)
                )
                self._delete([number for (number,) in rows])

    def clear(self) -> None:
        """Remove everything, and give the room back."""
        with self._transaction():
            for table in ("content", "block"):  # spaces may be in use
                self._database.execute(f"DELETE FROM {table}")
        self._database.execute("PRAGMA incremental_vacuum").fetchall()
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def check(self) -> Iterator[Checked]:
        """Read every block, and remove those that are damaged; after each what was found so far."""
        run = self._database.execute
        numbers = [number for (number,) in run("SELECT id FROM block ORDER BY id")]
        num_damaged = 0
        for count, number in enumerate(numbers, start=1):
            row = run(
                "SELECT hash, parent, tokens, digest, data FROM block LEFT JOIN content "
                "USING (id) WHERE id = ?",
                (number,),
            ).fetchone()
            if row is not None:  # nobody has removed it meanwhile
                block_hash, parent, tokens, digest, data = row
                if not _is_whole(block_hash, parent, tokens, data, digest):
                    num_damaged += 1
                    with self._transaction():
                        self._delete([number])
            yield Checked(count, num_damaged)

    def check_structure(self) -> None:
        """Raises sqlite3.DatabaseError if the file contradicts itself."""
        for problem in self._database.execute("PRAGMA integrity_check"):
            if problem != ("ok",):
                raise sqlite3.DatabaseError(*problem)

    def _make_room(self, size: int, space: int) -> list[bytes]:
        if self._limit is None:
            return []
        run, removed = self._database.execute, list[bytes]()
        needed = (size // (_PAGE_BYTES - 4) + 8) * _PAGE_BYTES
        while True:
            (pages,) = run("PRAGMA page_count").fetchone()
            (unused,) = run("PRAGMA freelist_count").fetchone()
            if (pages - unused) * _PAGE_BYTES + needed <= self._limit:
                return removed
            rows = run(
                f"SELECT id, space, hash FROM block ORDER BY used, id LIMIT {_EVICTED_AT_ONCE}"
            ).fetchall()
            if not rows:
                return removed
            self._delete([number for number, _, _ in rows])
            removed += [block_hash for _, of, block_hash in rows if of == space]

    def _delete(self, numbers: Sequence[int]) -> None:
        for table in ("content", "block"):
            self._database.executemany(
                f"DELETE FROM {table} WHERE id = ?", [(number,) for number in numbers]
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has ended it already
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def start_afresh(folder: Path, inode: int | None) -> None:
    """Remove a damaged file, unless it is not the one with this inode any more: then somebody else
    has done it. Processes that have it open go on with what they have. Raises OSError."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            found = (folder / NAME).stat().st_ino
        except FileNotFoundError:
            return
        if inode is None or inode == found:
            for path in folder.glob(NAME + "*"):
                path.unlink(missing_ok=True)


def _is_whole(block_hash: Any, parent: Any, tokens: Any, data: Any, digest: Any) -> bool:
    """Whether it is what was written. In a damaged file anything may have any type."""
    try:
        return bool(_digest(block_hash, parent, tokens, data) == digest)
    except TypeError:
        return False


def _digest(block_hash: bytes, parent: bytes, tokens: bytes, data: bytes) -> bytes:
    digest = hashlib.blake2b(block_hash + parent, digest_size=16)
    digest.update(tokens)
    digest.update(data)
    return digest.digest()
