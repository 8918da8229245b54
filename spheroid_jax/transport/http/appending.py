"""Pieces of an upload into its part, by a thread, while the next ones come in."""

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor

from spheroid_jax.transport.http.bodies import Piece, Pieces
from spheroid_jax.transport.http.parts import Part, unknown

_TURN = 0.05  # seconds for which a part has a thread, while others wait for one


async def append_all(
    part: Part, descriptor: int, pieces: Pieces, pool: Executor
) -> None:
    """Appends what comes, until there are no more pieces or the next one raises.

    Whatever ends it, what came before is in the part then, and nothing of a piece that
    failed.

    Args:
      part: that grows.
      descriptor: of its file, to append with.
      pieces: each is left as it is until the second one after it is asked for.
      pool: has a thread for this.

    Raises:
      ProtocolError: the part isn't wanted any more; the disk is full.
      Exception: as of ``pieces``.
    """
    appending = _Appending(part, descriptor, pool)
    try:
        try:
            async for piece in pieces:
                await appending.put(piece)
        finally:
            await appending.end()
        appending.check()
    finally:
        appending.forget()


class _Appending:
    """A thread works for as long as there is a piece, but lets others have a turn."""

    def __init__(self, part: Part, descriptor: int, pool: Executor) -> None:
        self._part, self._descriptor, self._pool = part, descriptor, pool
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._left: collections.deque[Piece] = collections.deque()
        self._works = False  # a thread does, or the pool has been asked for one
        self._changed = asyncio.Event()
        self._is_awaited = False
        self._failure: BaseException | None = None

    async def put(self, piece: Piece) -> None:
        """Takes a piece; returns once all pieces before it are in the part."""
        self.check()
        with self._lock:
            self._left.append(piece)
            starts, self._works = not self._works, True
        if starts:
            self._start()
        await self._until(lambda: len(self._left) <= 1)
        self.check()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._failure is not None:
            raise self._failure
        if self._part.dropped:
            raise unknown(self._part.name)

    async def end(self) -> None:
        """Waits for the thread, also when it is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._until(lambda: not self._works)
                break
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def forget(self) -> None:
        """Lets go of what went wrong.

        It knows this frame, and so pieces of megabytes: with a full disk, where there
        are many such errors, they would wait for the garbage collector.
        """
        self._failure = None

    def _start(self) -> None:
        try:
            self._pool.submit(self._work)
        except BaseException:  # it is shut down
            self._works = False
            raise

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Waits for what the thread changes, and tells of."""
        while True:
            self._changed.clear()
            with self._lock:
                self._is_awaited = not is_so()
            if not self._is_awaited:
                return
            await self._changed.wait()

    def _work(self) -> None:
        turn = time.monotonic() + _TURN
        while True:
            with self._lock:
                piece = self._left[0]
            if self._failure is None:
                self._append(piece)
            with self._lock:
                self._left.popleft()
                self._works = bool(self._left)
                ends = not self._works
                wakes, self._is_awaited = self._is_awaited, False
            if wakes:
                self._loop.call_soon_threadsafe(self._changed.set)
            if ends:
                return
            if time.monotonic() >= turn:
                # Behind all who wait for a thread: those who send as fast as the disk
                # writes would keep them out until they have sent everything.
                with contextlib.suppress(RuntimeError):  # no more than what is begun
                    self._pool.submit(self._work)
                    return

    def _append(self, piece: Piece) -> None:
        try:
            self._part.append(self._descriptor, piece)
        except BaseException as error:
            self._part.hasher = None  # it knows too much; the file is hashed in the end
            self._failure = error
        else:
            self._part.size += len(piece)
