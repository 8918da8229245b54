"""A thread for what takes long, so that the event loop stays free."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")


class OneThread:
    """Calls functions one after the other, in one thread of its own.

    The thread is a daemon: a computation that hangs doesn't keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Value], *args: Any) -> asyncio.Future[Value]:
        """The future of what ``function(*args)`` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()

        def work() -> None:
            value: Any = None
            failed: BaseException | None = None
            try:
                value = function(*args)
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(_settle, future, value, failed)

        self._calls.put(work)
        return future

    def close(self) -> None:
        """Ends the thread after what it does."""
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


def _settle(
    future: asyncio.Future[Any], value: Any, failed: BaseException | None
) -> None:
    if future.done():  # nobody waits for it any more
        return
    if failed is None:
        future.set_result(value)
    elif isinstance(failed, Exception) and not isinstance(failed, StopIteration):
        future.set_exception(failed)
    else:
        future.set_exception(RuntimeError(f"{type(failed).__name__}: {failed}"))
