"""How programs end: as they should at a signal, at once at a second one."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

STOPPED = 130  # the status after Ctrl-C


def leave(status: int) -> NoReturn:
    """Ends a program that Ctrl-C may have found while it compiled.

    After Ctrl-C it ends where it stands: JAX's compiler goes on in its threads, and
    they crash while Python takes itself apart, so that a stop would look like a fault.

    Args:
      status: for the shell.
    """
    if status == STOPPED:
        leave_at_once(status)
    sys.exit(status)


def leave_at_once(status: int) -> NoReturn:
    """Ends the process like one that is killed, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads on
            stream.flush()
    os._exit(status)


def on_signals(
    stop: Callable[[], str], say: Callable[[str], None], again: str = ""
) -> None:
    """From now on SIGINT and SIGTERM end this process, in order the first time.

    The second time it ends at once: nothing that was promised is lost by that.

    Args:
      stop: asks for the end, and says what it waits for.
      say: prints a line.
      again: what is kept, and how to go on; said on stderr at the second.
    """
    asked = False

    def signalled() -> None:
        nonlocal asked
        if asked:
            if again:
                with contextlib.suppress(OSError, ValueError):
                    print(f"stopped at once; {again}", file=sys.stderr)
            leave_at_once(STOPPED)
        asked = True
        say(f"{stop()}; a second Ctrl-C stops at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
