"""Items on their way into the bucket, and out of it when their rounds are over."""

import asyncio
from pathlib import Path

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore, all_of
from spheroid_jax.transport.items import index
from spheroid_jax.transport.protocol import Item

_PUTS = 2  # at a time, each of a piece in memory


class Publisher:
    """Puts items where workers find them, each of them once."""

    def __init__(self, store: BlobStore) -> None:
        """Nothing is known to be there."""
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._announced: dict[str, int] = {}  # the newest round that needs an item
        self._deleting = asyncio.Lock()
        self._puts = asyncio.Semaphore(_PUTS)

    async def publish(self, item: Item, directory: Path, round_: int) -> None:
        """Returns when the item is in the bucket, all of it.

        Who asks for the same item waits for the same transfer, and one who gives up
        doesn't end it.

        Raises:
          BucketError: it can't be written.
          OSError: it can't be read.
        """
        newest = max(round_, self._announced.get(item.digest, 0))
        self._announced[item.digest] = newest
        task = self._tasks.get(item.digest)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(self._put(item, directory))
            self._tasks[item.digest] = task
        await asyncio.shield(task)

    async def _put(self, item: Item, directory: Path) -> None:
        async with self._deleting:
            pass  # of this item perhaps
        mark = layout.item_index(item.digest)
        try:
            there = await self._store.read(mark, limit=index.INDEX_LIMIT)
        except BucketError as error:
            if error.code != "too_large":
                raise
            there = None
        if there is not None and index.digest(there.content) == item.digest:
            return
        content = await asyncio.to_thread((directory / index.INDEX).read_bytes)
        data = directory / index.DATA

        async def put(number: int) -> None:
            async with self._puts:
                start = number * layout.PIECE
                piece = await asyncio.to_thread(
                    read_range, data, start, min(start + layout.PIECE, item.bytes)
                )
                await self._store.put(layout.item_data(item.digest, number), piece)

        await all_of(put(n) for n in range(-(-item.bytes // layout.PIECE)))
        await self._store.put(mark, content)

    async def clean(self, before: int, now: int) -> None:
        """Deletes items that no round from ``before`` on needs.

        Items of an earlier life of the coordinator count as needed ``now``.
        """
        async with self._deleting:
            keys = await self._store.list("items/")
            digests = {key.split("/")[1] for key in keys if key.count("/") == 2}
            for digest in sorted(digests):
                if self._announced.setdefault(digest, now) < before:
                    self._tasks.pop(digest, None)
                    # Without its mark first, so that nobody takes up half an item.
                    await self._store.delete(layout.item_index(digest))
                    await self._store.delete_all(f"items/{digest}/")
                    del self._announced[digest]

    async def close(self) -> None:
        """Ends transfers."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
