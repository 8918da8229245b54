"""A small SQLite file that processes share: durable, checked, errors of one line.

What a file system does to a file is met here: another version, damage, a full disk,
another process that writes at the same moment.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax import manifests

BUSY_SECONDS = 10.0  # how long another process's write is waited for
_APPLICATION = 0x53706864  # "Sphd", as SQLite's application_id
_LOG_LIMIT = 4 << 20  # bytes; a longer log is written back into the file
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CLOSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


class LedgerError(RuntimeError):
    """The ledger can't be used; one line with the cure.

    Attributes:
      disk_full: whether it is for want of space; nothing was written then, and the
        ledger goes on working as soon as there is some.
    """

    def __init__(self, message: str, *, disk_full: bool = False):
        super().__init__(message)
        self.disk_full = disk_full


class Database:
    """A SQLite file with a fixed schema, for threads of one process.

    Every row ends in a ``proof``, the SHA-256 of what is before it: SQLite itself
    notices broken pages, but not another bit within a value.

    Args:
      path: of the file, which exists; see :func:`create`.
      schema: {table: its CREATE statement, whose last column is ``proof BLOB``}.
      version: of the schema.

    Raises:
      LedgerError: if the file isn't one of this schema, whole and writable.
    """

    def __init__(self, path: Path, schema: Mapping[str, str], version: int):
        self.path = path
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        with told(path), contextlib.ExitStack() as opened:
            self._db = opened.enter_context(contextlib.closing(_connect(path)))
            # Reads of its own: they never wait for a write that is being flushed.
            self._reader = opened.enter_context(contextlib.closing(_connect(path)))
            self._check(schema, version)
            opened.pop_all()

    def close(self) -> None:
        """Closes the file; the database can't be used afterwards."""
        with self._lock, self._reading:
            self._reader.close()
            self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside is on disk at the end, or none of it is."""
        with self._lock, told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                raise
            self._shorten_log()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of ``SELECT * FROM table ...``, proven, without their proofs."""
        with self._lock, told(self.path):
            return [self.proven(row) for row in self._db.execute(query, values)]

    def rows_apart(self, query: str) -> list[tuple[Any, ...]]:
        """As :meth:`rows`, but never behind a write of this process."""
        with self._reading, told(self.path):
            return [self.proven(row) for row in self._reader.execute(query)]

    def data_version(self) -> int:
        """Another number after every write, whichever process it was."""
        with self._reading, told(self.path):
            return int(self._reader.execute("PRAGMA data_version").fetchone()[0])

    def insert(self, db: sqlite3.Connection, table: str, values: Sequence[Any]) -> None:
        """Writes a row of plain values, whose keys must be new."""
        _insert(db, "INSERT", table, values)

    def put(self, db: sqlite3.Connection, table: str, values: Sequence[Any]) -> None:
        """Writes a row of plain values in the place of one with the same key."""
        _insert(db, "INSERT OR REPLACE", table, values)

    def proven(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """A whole row without its proof.

        Raises:
          LedgerError: if it isn't what was written.
        """
        *values, proof = row
        if proof != _proof(values):
            raise LedgerError(damage(self.path, "a row isn't what was written"))
        return tuple(values)

    def _check(self, schema: Mapping[str, str], version: int) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise LedgerError(
                f"{self.path} isn't a ledger of ours: move it away, or name another "
                "run directory"
            )
        if found != version:
            raise LedgerError(
                f"{self.path} has version {found} where this program reads {version}: "
                "use the program that wrote it, or another run directory"
            )
        query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        if dict(self._db.execute(query)) != dict(schema):
            raise LedgerError(damage(self.path, "its tables aren't those of a ledger"))
        (said,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            raise LedgerError(damage(self.path, said))
        for table in schema:
            for row in self._db.execute(f"SELECT * FROM {table}"):
                self.proven(row)

    def _shorten_log(self) -> None:
        # TRUNCATE keeps other writers out while the log is written back. SQLite's own
        # automatic way doesn't, and before SQLite 3.51.3 a commit in that moment could
        # damage the file (sqlite.org/wal.html, "The WAL-Reset Bug").
        log = self.path.with_name(f"{self.path.name}-wal")
        with contextlib.suppress(OSError, sqlite3.Error):
            if log.stat().st_size > _LOG_LIMIT:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def create(
    path: Path,
    schema: Mapping[str, str],
    version: int,
    rows: Mapping[str, Sequence[Sequence[Any]]],
) -> None:
    """Makes a database with its first rows, unless there is one.

    It appears whole: an empty file is never one that was only just begun.

    Raises:
      LedgerError: if it can't be written, or if only its log is there.
    """
    log = path.with_name(f"{path.name}-wal")
    with told(path):
        # In this order: who finds a log made by another process finds its file.
        if log.exists() and not path.exists():
            raise LedgerError(
                f"{path} is gone but {log.name} is there: restore both from a copy, "
                "or move the log away to start anew"
            )
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            _build(partial, schema, version, rows)
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        manifests.sync(path.parent)
        manifests.sync(path.parent.parent)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Whatever SQLite or the file system raises becomes a line."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise  # ours, not the disk's
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        raise _line(path, error, code) from error
    except UnicodeDecodeError as error:  # even SQLite's message may be damaged
        raise LedgerError(damage(path, "text that isn't UTF-8")) from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _disk_full(path) from error
        raise LedgerError(
            f"{path} can't be used ({error.strerror}): let this user write there, or "
            "name another run directory"
        ) from error


def _build(
    path: Path,
    schema: Mapping[str, str],
    version: int,
    rows: Mapping[str, Sequence[Sequence[Any]]],
) -> None:
    # Digests of tokens are nobody else's business.
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute(f"PRAGMA application_id={_APPLICATION}")
        db.execute(f"PRAGMA user_version={version}")
        for command in schema.values():
            db.execute(command)
        for table, values in rows.items():
            for row in values:
                _insert(db, "INSERT", table, row)
        _use_log(db, path)
    finally:
        db.close()
    manifests.sync(path)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA fullfsync=ON")  # where fsync alone doesn't reach the disk
        db.execute("PRAGMA checkpoint_fullfsync=ON")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("PRAGMA wal_autocheckpoint=0")
        _use_log(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _use_log(db: sqlite3.Connection, path: Path) -> None:
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise LedgerError(
            f"{path} is on a file system that processes can't share memory on: name "
            "a run directory on a local disk"
        )


def _insert(
    db: sqlite3.Connection, command: str, table: str, values: Sequence[Any]
) -> None:
    plain = [_plain(value) for value in values]
    marks = ",".join("?" * (len(plain) + 1))
    db.execute(f"{command} INTO {table} VALUES ({marks})", [*plain, _proof(plain)])


def _plain(value: Any) -> Any:
    """A value as SQLite gives it back: NaN is NULL, and no zero has a sign."""
    if isinstance(value, float):
        return None if value != value else value + 0.0
    return value


def _proof(values: Sequence[Any]) -> bytes:
    # Damage may have made other types of them.
    return hashlib.sha256(json.dumps(list(values), default=repr).encode()).digest()


def _line(path: Path, error: sqlite3.Error, code: int) -> LedgerError:
    said = " ".join(str(error).split())
    if code in _FULL or code & 0xFF == sqlite3.SQLITE_FULL:
        return _disk_full(path)
    if code & 0xFF in _DAMAGED or "decode to UTF-8" in said:
        return LedgerError(damage(path, said))
    if code & 0xFF in _BUSY:
        return LedgerError(
            f"{path} is held by another process for over {BUSY_SECONDS:.0f} s: end "
            "that process, then try again"
        )
    if code & 0xFF in _CLOSED:
        return LedgerError(
            f"{path} can't be opened for writing ({said}): let this user write to it "
            "and to its folder"
        )
    return LedgerError(f"{path} can't be used ({said}): see to the disk it is on")


def _disk_full(path: Path) -> LedgerError:
    return LedgerError(
        f"the disk is full: {path} can't grow; free some space on it", disk_full=True
    )


def damage(path: Path, said: str) -> str:
    """The line that says so."""
    said = " ".join(said.replace("*", "").split())
    return f"{path} is damaged ({said}): restore it from a copy"
