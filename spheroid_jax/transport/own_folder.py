"""Where a worker keeps what it would miss after a restart: a folder a run and worker.

``BASE/WORKER/RUN`` holds the state of one worker in one run, and nothing else does, so
any number of workers and of runs may share a base. What runs leave there that nobody
goes on with is deleted after a while.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.transport.lock import Lock, LockError, Wording

KEPT_RUNS = 4  # of a worker, beside the one it works for: those it was in last
KEPT_SECONDS = 30 * 86400.0  # since a process last wrote anything of a run
_LOCK = "lock"
_STATE = {"items", "outbox", "slots"}  # a worker keeps one of them, and nothing else
_GONE = ".gone-"  # a folder on its way out
_MOMENT = 0.2  # seconds
_TOKENS = ".tokens"
_WORKER = Wording(
    "another worker process",
    "give this one a token of its own (experiments.tokens --add=NAME)",
    "a --workdir",
)
Say = Callable[[str], None]


class OwnFolder(NamedTuple):
    """A worker's folder in a run, and the lock that keeps other processes out."""

    path: Path
    lock: Lock


def lock_token(base: Path, token: str) -> Lock:
    """Refuses a second process with the same token and base.

    It is taken before a coordinator hears of this process, which would otherwise let it
    take over from the one that is at work.

    Args:
      base: of workers' folders.
      token: the worker's; neither it nor what the coordinator keeps of it is written.

    Raises:
      LockError: another process has it, or files can't be locked there.
    """
    digest = hashlib.sha256(f"lock of a worker: {token}".encode()).hexdigest()
    return Lock(base / _TOKENS / digest[:32], _WORKER)


def own_folder(base: Path, worker: str, run: str, say: Say) -> OwnFolder:
    """Takes the folder of a worker in a run, and deletes what is too old beside it.

    What releases before left in ``BASE/WORKER-RUN`` (the run's first eight characters)
    is taken up; what they left in ``BASE`` itself doesn't say of which run it is, and
    isn't used: that is told.

    Args:
      base: of workers' folders.
      worker: its name.
      run: identifies the run.
      say: prints a line.

    Raises:
      LockError: another process works there, or files can't be locked there.
    """
    path = base / worker / run
    _take_up(base / f"{worker}-{run[:8]}", path, say)
    lock = _lock(path / _LOCK)
    if os.path.exists(base / "items" / ".lock"):
        say(
            f"{base} itself holds items/, outbox/ and slots/ of an older release, that "
            f"don't say of which run they are: not used, delete them. Now it's {path}"
        )
    if gone := prune(base, worker, path):
        say(f"deleted what a worker kept of runs long ago: {', '.join(map(str, gone))}")
    return OwnFolder(path, lock)


def _take_up(before: Path, path: Path, say: Say) -> None:
    """What a release before this one has left in ``before``, if it has."""
    # A worker may be called so, too: it has a folder a run, each with a lock.
    is_left = os.path.isdir(before) and not _glob(before, f"*/{_LOCK}")
    if not is_left or os.path.exists(path):
        return
    at_work = before / "items" / ".lock"  # while a process of that release is
    is_used = os.path.exists(at_work)  # False, too, if nobody may look
    with Lock(at_work, _WORKER) if is_used else contextlib.nullcontext():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            before.rename(path)
        except OSError as error:
            say(
                f"{before}, of an older release, can't be renamed to {path} "
                f"({error.strerror}): not used, delete it"
            )


def prune(
    base: Path, worker: str, own: Path, now: Callable[[], float] = time.time
) -> list[Path]:
    """Deletes folders of other runs that nobody uses, and says which.

    They are those that were left alone for ``KEPT_SECONDS``, of any worker, and of
    ``worker`` all but the ``KEPT_RUNS`` newest. A folder without a lock, or that holds
    anything else than a worker's state, isn't one of ours, such as a coordinator's; and
    one that can't be deleted stays.
    """
    others = sorted(
        ((_used(path), path) for path in _folders(base) if path != own), reverse=True
    )
    newest = [path for _, path in others if path.parent.name == worker][:KEPT_RUNS]
    gone = []
    for used, path in others:
        is_kept = path in newest or path.parent.name != worker
        if is_kept and now() - used < KEPT_SECONDS:
            continue
        # It takes long to delete many: who came back meanwhile has written there.
        if _used(path) == used and _delete(path):
            gone.append(path)
    for leftover in _glob(base, f"*/{_GONE}*"):  # of a kill in the middle of the above
        _delete(leftover)
    for token in _glob(base, f"{_TOKENS}/*"):
        if now() - _used(token) >= KEPT_SECONDS:
            with contextlib.suppress(LockError, OSError), Lock(token, _WORKER):
                token.unlink()
    return gone


def _folders(base: Path) -> Iterator[Path]:
    """Those of all workers and runs."""
    for lock in _glob(base, f"*/*/{_LOCK}"):
        folder = lock.parent
        if not folder.name.startswith(_GONE) and _is_ours(folder):
            yield folder


def _is_ours(folder: Path) -> bool:
    """Whether it is a worker's, and not another's that has a lock: one too few goes."""
    if folder.is_symlink() or not (folder / _LOCK).is_file():
        return False
    try:
        held = {path.name for path in folder.iterdir()} - {_LOCK}
    except OSError:
        return False
    return bool(held) and held <= _STATE


def _used(path: Path) -> float:
    """When a process last wrote there, seconds since 1970."""
    times = [0.0]
    for found in (path, *_glob(path, "*"), *_glob(path, "*/*")):
        with contextlib.suppress(OSError):
            times.append(found.stat().st_mtime)
    return max(times)


def _glob(path: Path, pattern: str) -> list[Path]:
    """What fits, as far as it can be read: other processes may be deleting there."""
    found: list[Path] = []
    paths = path.glob(pattern)
    with contextlib.suppress(OSError):
        found.extend(paths)
    return found


def _lock(path: Path) -> Lock:
    with contextlib.suppress(LockError):
        return Lock(path, _WORKER)
    time.sleep(_MOMENT)  # perhaps it was being deleted, which begins by a renaming
    return Lock(path, _WORKER)


def _delete(path: Path) -> bool:
    with contextlib.suppress(LockError, OSError), Lock(path / _LOCK, _WORKER):
        gone = path
        if not path.name.startswith(_GONE):
            # Another process may still be deleting what was here before.
            gone = path.with_name(f"{_GONE}{os.getpid()}-{path.name}")
            os.rename(path, gone)  # who comes back from now on begins anew
        shutil.rmtree(gone)
        return True
    return False
