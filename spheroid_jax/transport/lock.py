"""One process a directory: a lock that ends with the process that holds it."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from spheroid_jax.transport.ledger import LedgerError

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


class Wording(NamedTuple):
    """What an error says of a lock.

    Attributes:
      who: may hold it, such as ``another coordinator``.
      cure: for that case, after "end it first, or".
      where: it is, such as ``a run directory``.
    """

    who: str
    cure: str
    where: str


COORDINATOR = Wording(
    "another coordinator", "name another run directory", "a run directory"
)


class LockError(LedgerError):
    """A lock isn't to be had; one line: who holds it, or why, and the cure.

    Attributes:
      taken: whether another process holds it.
    """

    def __init__(self, message: str, *, taken: bool = False, disk_full: bool = False):
        super().__init__(message, disk_full=disk_full)
        self.taken = taken


class Lock:
    """Holds ``path`` for this process until :meth:`release`, or its end.

    The system keeps the lock, not the file: the file stays, and what it says (the
    holder's process id) is for the reader of an error only. Where a holder deletes the
    file's directory, the next one locks the file that is there then.

    Args:
      path: of the file; made if need be, with its directory.
      wording: of errors.

    Raises:
      LockError: if another process holds it, or files can't be locked there.
    """

    def __init__(self, path: Path, wording: Wording = COORDINATOR):
        self.path = path
        self._descriptor = -1
        try:
            while not self._taken_up():
                self.release()
        except OSError as error:
            holder = self._holder()
            self.release()
            if error.errno in _TAKEN and holder is not None:
                raise LockError(
                    f"{wording.who}{holder} holds {path}: end it first, or "
                    f"{wording.cure}",
                    taken=True,
                ) from error
            raise LockError(
                f"{path} can't be locked ({error.strerror}): let this user write "
                f"there, or name {wording.where} on a local disk",
                disk_full=error.errno in (errno.ENOSPC, errno.EDQUOT),
            ) from error
        # Who it is comes after the lock, and isn't worth failing for on a full disk.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Lets the next one in."""
        _held.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _taken_up(self) -> bool:
        """Locks the file; False if it isn't the one at ``path`` any more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What a link leads to isn't ours to write a process id over.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def _holder(self) -> str | None:
        """Who holds it, as far as the file says; None if it couldn't be opened."""
        if self._descriptor < 0:
            return None
        said = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
        return f" (process {said})" if said.isdigit() else ""


_held: set[Lock] = set()


def _let_go() -> None:
    for lock in list(_held):
        lock.release()


# A child that only forked would keep the lock of a coordinator that was killed.
os.register_at_fork(after_in_child=_let_go)
