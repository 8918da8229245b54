"""Items as they lie in a bucket, for ``items.fetch``."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.retry import Again
from spheroid_jax.transport.items import index
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Item

Tried = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


class BucketItems:
    """An ``ItemSource``; each request is tried again by itself."""

    def __init__(self, store: BlobStore, tried: Tried) -> None:
        """``tried(what, attempt)`` calls ``attempt`` until it works."""
        self._store, self._tried = store, tried

    @property
    def url(self) -> str:
        """For messages."""
        return self._store.address.url

    async def read_index(self, item: Item) -> bytes:
        """See ``ItemSource``."""

        async def attempt() -> bytes:
            found = await self._store.read(
                layout.item_index(item.digest), limit=index.INDEX_LIMIT
            )
            if found is None:
                raise self._gone(item)
            return found.content

        return await self._tried("fetching an index", attempt)

    async def read_data(
        self, item: Item, start: int, stop: int
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """See ``ItemSource``."""
        while start < stop:
            number, at = divmod(start, layout.PIECE)
            size = min(stop - start, layout.PIECE - at)
            key = layout.item_data(item.digest, number)

            async def attempt(key: str = key, at: int = at, size: int = size) -> bytes:
                try:
                    content = await self._store.get(key, at, at + size)
                except BucketError as error:
                    if error.code == "short":
                        raise Again(str(error), garbled=True) from error
                    raise
                if content is None:
                    raise self._gone(item)
                return content

            yield await self._tried("fetching data", attempt)
            start += size

    def read_step(self, item: Item) -> AsyncGenerator[bytes | memoryview, None]:
        """See ``ItemSource``: steps don't go through a bucket, items are read whole."""
        raise self._gone(item)

    def _gone(self, item: Item) -> LinkError:
        return LinkError(
            f"{self.url}: item {item.digest[:12]} isn't there, its round is over: ask "
            "for work again",
            code="unknown",
            status=404,
        )
