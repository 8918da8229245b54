"""How a program that serves ends: at a signal, or at once at a second one."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable

from spheroid_jax.runs.exchange.frame import say

AFTER_COMPILE = "stops after this compile"


def signals(said: Callable[[], str]) -> asyncio.Event:
    """Set by the first signal, when ``said()`` is said; the second ends it at once."""
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            leave(130)
        say(f"{said()}; a second Ctrl-C stops at once")
        stopped.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopped


def leave(status: int) -> None:
    """Ends the process now, whatever its threads do."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)
