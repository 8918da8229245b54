"""Items as they lie in a bucket, for ``items.fetch``."""

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.retry import Again
from spheroid_jax.transport.items import index
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Item

_MISSES = 5  # looks for an object that isn't there: reads may be behind

Tried = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


class BucketItems:
    """An ``ItemSource``; each request is tried again by itself."""

    def __init__(
        self,
        store: BlobStore,
        *,
        tried: Tried,
        look: Callable[[], Awaitable[None]],
        want: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        patience: float,
    ) -> None:
        """What the link lends.

        Args:
          store: where from.
          tried: ``tried(what, attempt)`` calls ``attempt`` until it works.
          look: waits a little, and looks for news.
          want: tells the coordinator that an item's data are missing, and waits a
            little.
          clock: seconds.
          patience: seconds in which data that are missing must come, piece by piece.
        """
        self._store, self._tried = store, tried
        self._look, self._want = look, want
        self._clock, self._patience = clock, patience

    @property
    def url(self) -> str:
        """For messages."""
        return self._store.address.url

    async def read_index(self, item: Item) -> bytes:
        """See ``ItemSource``."""

        async def attempt() -> bytes | None:
            found = await self._store.read(
                layout.item_index(item.digest), limit=index.INDEX_LIMIT
            )
            return None if found is None else found.content

        return await self._shown(
            item, lambda: self._tried("fetching an index", attempt)
        )

    async def read_data(
        self, item: Item, start: int, stop: int
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """See ``ItemSource``; they needn't be there yet where a step is."""
        while start < stop:
            number, at = divmod(start, layout.PIECE)
            size = min(stop - start, layout.PIECE - at)
            key = layout.item_data(item.digest, number)
            ends = self._clock() + self._patience
            while (content := await self._read(key, at, at + size)) is None:
                if self._clock() >= ends:
                    raise self._gone(item)
                await self._want(item.digest)
            yield content
            start += size

    async def read_step(self, item: Item) -> AsyncGenerator[bytes | memoryview, None]:
        """See ``ItemSource``."""
        for start in range(0, item.step_bytes, layout.PIECE):
            size = min(item.step_bytes - start, layout.PIECE)
            key = layout.item_step(item.digest, start // layout.PIECE)
            yield await self._shown(item, functools.partial(self._read, key, 0, size))

    async def _shown(
        self, item: Item, read: Callable[[], Awaitable[bytes | None]]
    ) -> bytes:
        """What was put before the item was announced, so must be there by and by."""
        for _ in range(_MISSES):
            if (content := await read()) is not None:
                return content
            await self._look()
        raise self._gone(item)

    async def _read(self, key: str, start: int, stop: int) -> bytes | None:
        async def attempt() -> bytes | None:
            try:
                return await self._store.get(key, start, stop)
            except BucketError as error:
                if error.code == "short":
                    raise Again(str(error), garbled=True) from error
                raise

        found: bytes | None = await self._tried("fetching data", attempt)
        return found

    def _gone(self, item: Item) -> LinkError:
        return LinkError(
            f"{self.url}: item {item.digest[:12]} isn't there, its round is over: ask "
            "for work again",
            code="unknown",
            status=404,
        )
