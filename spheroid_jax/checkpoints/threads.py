"""Work on the side: many small tasks at once, and one long one with a deadline.

All threads are daemons: one that hangs on a dead file system must not keep the
process from ending with an error.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_WORKERS = min(8, os.cpu_count() or 1)


def parallel(function: Callable[[Task], Result], tasks: Iterable[Task]) -> list[Result]:
    """``[function(task) for task in tasks]`` by a few threads; raises the first error.

    Worth it where ``function`` lets go of the interpreter's lock: hashing, copying,
    reading and writing of large buffers.
    """
    todo = list(tasks)
    results: list[Any] = [None] * len(todo)
    errors: list[BaseException] = []
    numbers = iter(range(len(todo)))  # next() of it is atomic under the lock
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = function(todo[number])
            except BaseException as error:  # to be raised by the caller's thread
                errors.append(error)

    helpers = [
        threading.Thread(target=work, daemon=True)
        for _ in range(min(_WORKERS, len(todo)) - 1)
    ]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return results


class Pending:
    """A function that runs beside the caller, at most until a deadline."""

    def __init__(self, function: Callable[[], None], seconds: float) -> None:
        """Starts ``function``, whose errors ``wait`` raises."""
        self._error: BaseException | None = None
        self._deadline = time.monotonic() + seconds

        def run() -> None:
            try:
                function()
            except BaseException as error:  # to be raised by the caller's thread
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits for the end.

        Raises:
          TimeoutError: The deadline passed; the function may still be running.
          BaseException: What the function raised.
        """
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError
        if self._error is not None:
            raise self._error
