"""What a file system does to a ledger, in one line with the cure."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BUSY_SECONDS = 10.0  # how long another process's write is waited for
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
