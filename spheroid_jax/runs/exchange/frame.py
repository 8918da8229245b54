"""The frame of both programs: one line for a failure, the way back after a stop."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax

from spheroid_jax.fields import ConfigError
from spheroid_jax.logs import show_logs
from spheroid_jax.parser import mistake
from spheroid_jax.runs.session import explained
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.ledger import LedgerError
from spheroid_jax.transport.link import LinkError

Options = TypeVar("Options")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def say(line: str) -> None:
    """Prints a line; a full disk behind it, or nobody, ends no run."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def program(
    read: Callable[[], Options], action: Callable[[Options], str], again: str
) -> int:
    """Runs ``action`` on what ``read`` makes of a command line; returns the status.

    Zero at the end of the run, 2 for a wrong command line, 1 for a failure that is
    explained in one line, 130 for a stop: ``again`` is said then.
    """
    show_logs()
    try:
        options = read()
    except ConfigError as error:
        return mistake(error)
    keep_compiled()
    try:
        ended = action(options)
    except (BucketError, LinkError, LedgerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        ended = "interrupted"
    except OSError as error:
        if error.errno not in _DISK:
            raise
        where = error.filename or "the disk"
        print(
            f"error: {where} can't be written ({error.strerror}): make room, or name "
            "another --workdir; the same command goes on",
            file=sys.stderr,
        )
        return 1
    except Exception as error:
        line = explained(error)
        if not line:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 1
    if ended == "finished":
        return 0
    print(f"stopped; {again}", file=sys.stderr)
    return 130


def keep_compiled() -> None:
    """A program that is started again, after a crash above all, compiles no more."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "spheroid_jax" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
