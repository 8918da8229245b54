"""Says when a program is compiled: who waits for it should know why."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from spheroid_jax.serving.host.computing import Shape
from spheroid_jax.serving.host.thread import OneThread

Value = TypeVar("Value")


class Compiling:
    """Runs what may compile, and tells of it where that takes more than a moment.

    Args:
      thread: that computes.
      say: for the one who runs it; one line each.
      moment: seconds after which it is told: a program that was kept on disk is there
        sooner.

    Attributes:
      busy: whether a program of a new shape is compiled just now.
    """

    def __init__(
        self, thread: OneThread, say: Callable[[str], None], moment: float = 0.5
    ) -> None:
        self._thread, self._say, self._moment = thread, say, moment
        self._known: set[Shape] = set()
        self.busy = False

    async def run(
        self, shape: Shape, why: str, function: Callable[..., Value], *args: Any
    ) -> Value:
        """What ``function(*args)`` returns or raises, called in the thread.

        Args:
          shape: of the program that it needs.
          why: it is compiled now, in words.
        """
        if shape in self._known:
            return await self._thread.call(function, *args)
        loop = asyncio.get_running_loop()
        told, began = False, 0.0
        timer: asyncio.TimerHandle | None = None

        def tell() -> None:
            nonlocal told
            told = True
            self._say(f"compiles for {described(shape)} ({why}; kept on disk) ...")

        def begun() -> None:
            nonlocal timer, began
            if shape in self._known:  # what it waited for was the same
                return
            began, self.busy = time.monotonic(), True
            timer = loop.call_later(self._moment, tell)

        def work() -> Value:
            loop.call_soon_threadsafe(begun)  # there may have been others before it
            return function(*args)

        try:
            value = await self._thread.call(work)
        finally:
            self.busy = False
            if timer is not None:
                timer.cancel()
        self._known.add(shape)
        if told:
            self._say(f"compiled in {time.monotonic() - began:.1f} s")
        return value

    async def ahead(
        self, shapes: Iterable[Shape], warm: Callable[[int, int, str, str], None]
    ) -> None:
        """Compiles programs, one by one; cancelled, it ends after the one in hand."""
        for shape in shapes:
            compiling = asyncio.ensure_future(self.run(shape, "ahead", warm, *shape))
            try:
                await asyncio.shield(compiling)
            except asyncio.CancelledError:
                await asyncio.wait([compiling])
                raise


def described(shape: Shape) -> str:
    """A shape in words.

    >>> described(Shape(1, 16, "drafted"))
    '1 text of 16 positions, drafted'
    """
    texts = f"{shape.rows} text{'s' * (shape.rows > 1)}"
    positions = f"{shape.positions} position{'s' * (shape.positions > 1)}"
    more = [] if shape.fill == "given" else [shape.fill]
    more += [] if shape.answer == "last" else [shape.answer]
    return ", ".join([f"{texts} of {positions}", *more])
