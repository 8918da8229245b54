"""Items on their way into the bucket, and out of it when their rounds are over."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore, all_of
from spheroid_jax.transport.items import index
from spheroid_jax.transport.items.steps import STEP, is_worth
from spheroid_jax.transport.protocol import Item

_PUTS = 2  # at a time, each of a piece in memory


class _Part(NamedTuple):
    """What of an item goes into the bucket: its data, or the step that leads to it."""

    file: str
    bytes: int
    key: Callable[[str, int], str]


class Publisher:
    """Puts items where workers find them, each of them once."""

    def __init__(self, store: BlobStore) -> None:
        """Nothing is known to be there."""
        self._store = store
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}  # digest and file
        self._announced: dict[str, int] = {}  # the newest round that needs an item
        self._deleting = asyncio.Lock()
        self._puts = asyncio.Semaphore(_PUTS)

    async def publish(
        self, item: Item, directory: Path, round_: int, *, whole: bool = True
    ) -> None:
        """Returns when the item can be fetched from the bucket.

        Who asks for the same item waits for the same transfer, and one who gives up
        doesn't end it.

        Args:
          item: which.
          directory: where it is, and its step if there is one.
          round_: that needs it.
          whole: its data; else the step is enough where there is one.

        Raises:
          BucketError: it can't be written.
          OSError: it can't be read.
        """
        if not whole and is_worth(item):
            step = _Part(STEP, item.step_bytes, layout.item_step)
            try:
                await asyncio.shield(self._started(item, directory, round_, step))
                return
            except OSError:
                pass  # the step isn't on this disk any more; the data may be
        await asyncio.shield(self._started(item, directory, round_, _data(item)))

    def provide(self, item: Item, directory: Path, round_: int) -> None:
        """Sees to it that the data are on their way, for a worker who can't do without.

        To be called again until the worker has them.

        Raises:
          BucketError: the last try couldn't write them; there is another one.
          OSError: it couldn't read them; likewise.
        """
        last = self._tasks.get((item.digest, index.DATA))
        self._started(item, directory, round_, _data(item))
        if last is not None and last.done() and not last.cancelled():
            error = last.exception()
            if isinstance(error, BucketError | OSError):
                raise error

    def doubt(self, digest: str) -> None:
        """Somebody misses an item's data: they are looked for before it's believed."""
        task = self._tasks.get((digest, index.DATA))
        if task is not None and task.done():
            del self._tasks[digest, index.DATA]

    def _started(
        self, item: Item, directory: Path, round_: int, part: _Part
    ) -> asyncio.Task[None]:
        newest = max(round_, self._announced.get(item.digest, 0))
        self._announced[item.digest] = newest
        task = self._tasks.get((item.digest, part.file))
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(self._put(item, directory, part))
            self._tasks[item.digest, part.file] = task
        return task

    async def _put(self, item: Item, directory: Path, part: _Part) -> None:
        async with self._deleting:
            pass  # of this item perhaps
        marked = await self._is_marked(item)
        there = await self._store.list(f"items/{item.digest}/") if marked else []

        async def put(number: int, key: str) -> None:
            async with self._puts:
                start = number * layout.PIECE
                stop = min(start + layout.PIECE, part.bytes)
                path = directory / part.file
                piece = await asyncio.to_thread(read_range, path, start, stop)
                await self._store.put(key, piece)

        keys = [part.key(item.digest, n) for n in range(-(-part.bytes // layout.PIECE))]
        await all_of(put(n, key) for n, key in enumerate(keys) if key not in there)
        if not marked:
            content = await asyncio.to_thread((directory / index.INDEX).read_bytes)
            await self._store.put(layout.item_index(item.digest), content)

    async def _is_marked(self, item: Item) -> bool:
        try:
            found = await self._store.read(
                layout.item_index(item.digest), limit=index.INDEX_LIMIT
            )
        except BucketError as error:
            if error.code != "too_large":
                raise
            return False
        return found is not None and index.digest(found.content) == item.digest

    async def clean(self, before: int, now: int) -> None:
        """Deletes items that no round from ``before`` on needs, and their steps.

        Items of an earlier life of the coordinator count as needed ``now``.
        """
        async with self._deleting:
            keys = await self._store.list("items/")
            digests = {key.split("/")[1] for key in keys if key.count("/") == 2}
            for digest in sorted(digests):
                if self._announced.setdefault(digest, now) >= before:
                    continue
                for file in (index.DATA, STEP):
                    self._tasks.pop((digest, file), None)
                # Without its mark first, so that nobody takes up half an item.
                own = [key for key in keys if key.startswith(f"items/{digest}/")]
                own.sort(key=lambda key: key != layout.item_index(digest))
                for key in own:
                    await self._store.delete(key)
                del self._announced[digest]

    async def close(self) -> None:
        """Ends transfers."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _data(item: Item) -> _Part:
    return _Part(index.DATA, item.bytes, layout.item_data)


def read_range(path: Path, start: int, stop: int) -> bytes:
    """Those bytes of a file.

    Raises:
      OSError: it can't be read, or ends before.
    """
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(stop - start)
    if len(content) != stop - start:
        raise OSError(0, f"{path} ends before byte {stop}")
    return content
