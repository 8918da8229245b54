"""A small SQLite file that processes share: durable, checked, errors of one line.

What a file system does to a file is met here: another version, damage, a full disk,
another process that writes at the same moment.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spheroid_jax import manifests
from spheroid_jax.transport import database_errors
from spheroid_jax.transport.database_errors import LedgerError, damage, told

__all__ = ["Database", "LedgerError", "Step", "create"]

_APPLICATION = 0x53706864  # "Sphd", as SQLite's application_id
_LOG_LIMIT = 4 << 20  # bytes; a longer log is written back into the file


class Step(NamedTuple):
    """The way from a version of the tables to the next.

    Attributes:
      schema: of the older version.
      change: makes the newer one of it, within a transaction.
    """

    schema: Mapping[str, str]
    change: Callable[["Database", sqlite3.Connection], None]


class Database:
    """A SQLite file with a fixed schema, for threads of one process.

    Every row ends in a ``proof``, the SHA-256 of what is before it: SQLite itself
    notices broken pages, but not another bit within a value.

    Args:
      path: of the file, which exists; see :func:`create`.
      schema: {table: its CREATE statement, whose last column is ``proof BLOB``}.
      version: of the schema.
      steps: {older version: the step from it to the next}; a file of one is brought
        up to ``version``, all or nothing, whichever process comes first.

    Raises:
      LedgerError: if the file isn't one of these schemas, whole and writable.
    """

    def __init__(
        self,
        path: Path,
        schema: Mapping[str, str],
        version: int,
        steps: Mapping[int, Step] | None = None,
    ):
        self.path = path
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        with told(path), contextlib.ExitStack() as opened:
            self._db = opened.enter_context(contextlib.closing(_connect(path)))
            # Reads of its own: they never wait for a write that is being flushed.
            self._reader = opened.enter_context(contextlib.closing(_connect(path)))
            self._check(schema, version, steps or {})
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

    def _check(
        self, schema: Mapping[str, str], version: int, steps: Mapping[int, Step]
    ) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION:
            raise LedgerError(
                f"{self.path} isn't a ledger of ours: move it away, or name another "
                "run directory"
            )
        while (found := self._version()) in steps:
            self._prove(found, steps[found].schema)
            with self.transaction() as db:
                if self._version() == found:  # nobody else was faster
                    steps[found].change(self, db)
                    db.execute(f"PRAGMA user_version={found + 1}")
        if found != version:
            raise LedgerError(
                f"{self.path} has version {found} where this program reads {version}: "
                "use the program that wrote it, or another run directory"
            )
        self._prove(version, schema)

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _prove(self, version: int, schema: Mapping[str, str]) -> None:
        """Raises LedgerError unless the file is whole, of this schema and version."""
        self._db.execute("BEGIN")  # of one moment, whatever other processes do
        try:
            if self._version() != version:
                return
            query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
            if dict(self._db.execute(query)) != dict(schema):
                raise LedgerError(
                    damage(self.path, "its tables aren't those of a ledger")
                )
            (said,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if said != "ok":
                raise LedgerError(damage(self.path, said))
            for table in schema:
                for row in self._db.execute(f"SELECT * FROM {table}"):
                    self.proven(row)
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

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
        timeout=database_errors.BUSY_SECONDS,
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
