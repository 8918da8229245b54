"""Pieces of an upload into its part, by a thread, while the next ones come in."""

import asyncio
import collections
import threading
from concurrent.futures import Executor

from spheroid_jax.transport.http.bodies import Piece, Pieces
from spheroid_jax.transport.http.parts import Part, unknown


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
        async for piece in pieces:
            await appending.put(piece)
    finally:
        await appending.end()
    appending.check()


class _Appending:
    """The thread works for as long as there is a piece, and then leaves the pool."""

    def __init__(self, part: Part, descriptor: int, pool: Executor) -> None:
        self._part, self._descriptor, self._pool = part, descriptor, pool
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._left: collections.deque[Piece] = collections.deque()
        self._job: asyncio.Future[None] | None = None
        self._works = False  # whether the job will look at what is left
        self._fewer = asyncio.Event()
        self._is_awaited = False
        self._failure: BaseException | None = None

    async def put(self, piece: Piece) -> None:
        """Takes a piece; returns once all pieces before it are in the part."""
        self.check()
        with self._lock:
            self._left.append(piece)
            starts, self._works = not self._works, True
        if starts:
            if self._job is not None:
                await self._job  # has nothing more to do
            self._job = self._loop.run_in_executor(self._pool, self._work)
        while True:
            self._fewer.clear()
            with self._lock:
                self._is_awaited = len(self._left) > 1
            if not self._is_awaited:
                break
            await self._fewer.wait()
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
        while self._job is not None and not self._job.done():
            try:
                await asyncio.wait({self._job})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._works = False
                    return
                piece = self._left[0]
            if self._failure is None:
                self._append(piece)
            with self._lock:
                self._left.popleft()
                wakes, self._is_awaited = self._is_awaited, False
            if wakes:
                self._loop.call_soon_threadsafe(self._fewer.set)

    def _append(self, piece: Piece) -> None:
        try:
            self._part.append(self._descriptor, piece)
        except BaseException as error:
            self._part.hasher = None  # it knows too much; the file is hashed in the end
            self._failure = error
        else:
            self._part.size += len(piece)
