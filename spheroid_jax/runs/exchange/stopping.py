"""How a coordinator or a worker ends: in order at a signal, at once at a second."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable

STOPPED = 130  # the exit status


def on_signals(stop: Callable[[], str], say: Callable[[str], None], again: str) -> None:
    """From now on SIGINT and SIGTERM end this process, in order the first time.

    The second time it ends like a process that is killed, whatever its threads do:
    nothing that was promised is lost by that.

    Args:
      stop: asks for the end, and says what it waits for.
      say: prints a line.
      again: what is kept, and how to go on.
    """
    asked = False

    def signalled() -> None:
        nonlocal asked
        if asked:
            with contextlib.suppress(OSError, ValueError):
                print(f"stopped at once; {again}", file=sys.stderr, flush=True)
            os._exit(STOPPED)
        asked = True
        say(f"{stop()}; a second Ctrl-C stops at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
