"""What a program that serves says and does at a signal."""

import asyncio
from collections.abc import Callable

from spheroid_jax.leaving import on_signals
from spheroid_jax.runs.exchange.frame import say

AFTER_COMPILE = "stops after this compile"


def signals(said: Callable[[], str]) -> asyncio.Event:
    """Set by the first signal, when ``said()`` is said; the second ends it at once."""
    stopped = asyncio.Event()

    def stop() -> str:
        stopped.set()
        return said()

    on_signals(stop, say)
    return stopped
