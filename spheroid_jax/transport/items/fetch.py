"""Fetching an item: only the pieces that aren't here already, each verified.

The same for every exchange: an :class:`ItemSource` is all that is needed of one.
"""

import asyncio
import collections
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, Protocol

from spheroid_jax import manifests
from spheroid_jax.checkpoints.threads import parallel
from spheroid_jax.flushing import start_flush
from spheroid_jax.transport.items import index, pieces
from spheroid_jax.transport.items.index import DATA, INDEX, Piece
from spheroid_jax.transport.items.pieces import PART
from spheroid_jax.transport.items.steps import STEP, is_worth, take_step
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import Item

_DEPTH = 3  # batches of pieces in memory besides the one that is coming in
_REPEATS = 3  # times that corrupt content is fetched again
_FULL = {errno.ENOSPC, errno.EDQUOT}


class ItemSource(Protocol):
    """Where the bytes of items come from. Both calls may raise LinkError."""

    @property
    def url(self) -> str:
        """For messages."""

    async def read_index(self, item: Item) -> bytes:
        """The index; not more than ``index.INDEX_LIMIT`` bytes."""

    def read_data(
        self, item: Item, start: int, stop: int
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """Exactly the bytes from ``start`` to ``stop`` of the data, in some chunks."""

    def read_step(self, item: Item) -> AsyncGenerator[bytes | memoryview, None]:
        """The step from ``item.base`` to it, ``item.step_bytes`` bytes.

        LinkError ``unknown``: there is none any more; then the data are read.
        """


async def fetch(
    source: ItemSource, item: Item, target: Path, progress: Progress | None = None
) -> int:
    """Makes the directory ``target`` hold ``item``; see ``Link.fetch``.

    An interrupted fetch leaves ``target`` with the ending ``.part``, and the next one
    goes on from that. Memory: a few batches of 4 MiB, or of one piece each.

    Returns:
      Bytes that came over the wire.

    Raises:
      LinkError: The source failed, content stays corrupt, or the disk is full.
    """
    if await asyncio.to_thread(index.holds, target, item):
        return 0
    fetching = _Fetch(source, item, target, progress)
    try:
        return await fetching.run()
    except OSError as error:
        full = error.errno in _FULL
        cure = "make room there" if full else "check that disk, or use another"
        raise LinkError(
            f"item {item.digest[:12]} of {item.bytes} bytes can't be written to "
            f"{target.parent} ({error.strerror}); {cure}",
            code="disk_full" if full else "disk",
        ) from error


class _Fetch:
    """One fetch under way."""

    def __init__(
        self, source: ItemSource, item: Item, target: Path, progress: Progress | None
    ) -> None:
        self._source, self._item, self._target = source, item, target
        self._progress = progress or (lambda done, total: None)
        self._part = target.with_name(target.name + PART)
        self._moved = 0
        self._pieces: list[Piece] = []
        self._missing: dict[int, Piece] = {}  # by offset
        self._done = 0
        self._file = -1
        self._has_looked = False  # or is told to stop looking

    async def run(self) -> int:
        await asyncio.to_thread(self._part.mkdir, parents=True, exist_ok=True)
        await self._get_index()
        # The pool ends first: no thread may be at a descriptor that is closed, and
        # perhaps somebody else's by then.
        with self._opened(), ThreadPoolExecutor(2, "fetch") as pool:
            loop = asyncio.get_running_loop()
            await self._step(pool)
            try:
                await loop.run_in_executor(pool, self._take_what_is_here)
            finally:
                self._has_looked = True
            self._tell()
            for _ in range(1 + _REPEATS):
                for run in pieces.runs(self._pieces, self._missing):
                    await self._get_run(run, pool)
            if self._missing:
                self._corrupted(
                    f"{len(self._missing)} of {len(self._pieces)} pieces are"
                )
            await loop.run_in_executor(pool, os.fsync, self._file)
        await asyncio.to_thread(self._finish)
        return self._moved

    async def _get_index(self) -> None:
        path = self._part / INDEX
        why = ""
        for _ in range(1 + _REPEATS):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                content = await self._source.read_index(self._item)
                self._moved += len(content)
                await asyncio.to_thread(_write, path, content)
            try:
                self._pieces = index.pieces(content, self._item)
            except index.BadIndex as error:
                path.unlink()
                why = str(error)
            else:
                self._missing = {piece.offset: piece for piece in self._pieces}
                return
        self._corrupted(f"its index can't be used, as {why},")

    def _corrupted(self, what: str) -> NoReturn:
        raise LinkError(
            f"{self._source.url}: item {self._item.digest[:12]}: {what} not what was "
            f"published, {1 + _REPEATS} times; check what is between here and there",
            code="corrupted",
        )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT
        self._file = os.open(self._part / DATA, flags, 0o666)
        try:
            if os.fstat(self._file).st_size > self._item.bytes:
                os.truncate(self._file, self._item.bytes)
            yield
        finally:
            os.close(self._file)

    async def _step(self, pool: ThreadPoolExecutor) -> None:
        """Comes from an older item to this one, where that is here and a step leads."""
        item = self._item
        if not is_worth(item):
            return
        base, older = self._target.with_name(item.base), Item(item.base, item.bytes)
        if not await asyncio.to_thread(index.holds, base, older):
            return
        loop = asyncio.get_running_loop()
        path = self._part / STEP
        try:
            with path.open("wb") as file:
                async for chunk in self._source.read_step(item):
                    self._moved += len(chunk)
                    await loop.run_in_executor(pool, file.write, chunk)
        except LinkError as error:
            if error.code not in ("unknown", "garbled"):
                raise
        else:
            content = (self._part / INDEX).read_bytes()
            await loop.run_in_executor(pool, take_step, base, content, path, self._file)
        finally:
            path.unlink(missing_ok=True)

    def _take_what_is_here(self) -> None:
        """What an interrupted fetch left, then equal pieces of other items."""
        size = os.fstat(self._file).st_size
        left = [p for p in self._pieces if p.offset + p.size <= size]

        def is_right(piece: Piece) -> bool:
            return not self._has_looked and bool(pieces.read(self._file, piece))

        found = zip(left, parallel(is_right, left), strict=True)
        self._settle([piece for piece, right in found if right])
        older = pieces.pieces_beside(self._target)
        for piece in list(self._missing.values()):
            if piece.digest in older and not self._has_looked:
                path, there = older[piece.digest]
                content = pieces.read_file(path, there)
                if content is not None:
                    pieces.write(self._file, [content], piece.offset)
                    self._settle([piece])
        needed = sum(piece.size for piece in self._missing.values())
        if needed > shutil.disk_usage(self._part).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _settle(self, there: list[Piece]) -> None:
        for piece in there:
            self._done += self._missing.pop(piece.offset, Piece(0, 0, "")).size

    def _tell(self) -> None:
        self._progress(self._done, self._item.bytes)

    async def _get_run(self, run: list[Piece], pool: ThreadPoolExecutor) -> None:
        """Fetches adjacent pieces by one request; corrupt ones stay missing."""
        loop = asyncio.get_running_loop()
        writes: collections.deque[asyncio.Future[list[Piece]]] = collections.deque()
        stop = run[-1].offset + run[-1].size
        chunks = self._source.read_data(self._item, run[0].offset, stop)
        try:
            async with contextlib.aclosing(pieces.batches(run, chunks)) as batches:
                async for batch, parts in batches:
                    self._moved += sum(map(len, parts))
                    while len(writes) >= _DEPTH:
                        self._settle(await writes.popleft())
                    writes.append(loop.run_in_executor(pool, self._put, batch, parts))
                    self._tell()
            while writes:
                self._settle(await writes.popleft())
            self._tell()
        finally:
            await asyncio.gather(*writes, return_exceptions=True)

    def _put(self, batch: list[Piece], parts: list[memoryview]) -> list[Piece]:
        """Writes the pieces that are what they must be, and returns them."""
        good = []
        rest = collections.deque(parts)
        for piece in batch:
            content = pieces.take(rest, piece.size)
            if pieces.are(content, piece):
                pieces.write(self._file, content, piece.offset)
                good.append(piece)
        if good:
            start = good[0].offset
            start_flush(self._file, start, good[-1].offset + good[-1].size - start)
        return good

    def _finish(self) -> None:
        manifests.sync(self._part)
        if self._target.exists():  # and isn't what it must be
            shutil.rmtree(self._target)
        os.replace(self._part, self._target)
        manifests.sync(self._target.parent)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    manifests.sync(temporary)
    os.replace(temporary, path)
