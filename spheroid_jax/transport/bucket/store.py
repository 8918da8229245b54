"""Objects in a bucket, by TensorStore's key-value drivers, each call with a limit.

TensorStore sets no time-out of its own: a server that accepts a request and says no
more is waited for until the kernel gives the connection up. Every call here ends:
after some seconds, and a time for its bytes at the slowest rate that is still useful.
"""

import asyncio
import os
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

import tensorstore as ts

from spheroid_jax.transport.bucket import address
from spheroid_jax.transport.bucket.errors import BucketError, TooLarge, explain

SECONDS = 30.0  # for a request, without its bytes
SLOWEST = 64 << 10  # bytes a second; slower transfers are given up
MESSAGE_LIMIT = 1 << 20  # bytes of an object that is read whole

_Result = TypeVar("_Result")


class Found(NamedTuple):
    """An object as it was read."""

    content: bytes
    generation: bytes  # of this content; another content has another one


class BlobStore:
    """A prefix of a bucket. Keys are relative to it; folders don't exist in it.

    Every method raises :class:`BucketError`, one line with the cure.
    """

    def __init__(self, url: str, *, seconds: float = SECONDS, slowest: float = SLOWEST):
        """Parses the address; nothing is asked of the store.

        Args:
          url: as of :func:`address.parse`.
          seconds: a request's limit, without its bytes.
          slowest: bytes a second.

        Raises:
          ValueError: the address can't be used; one line.
        """
        self.address = address.parse(url)
        self._seconds, self._slowest = seconds, slowest
        # The only way to have TensorStore's HTTP client end a request that hangs. A
        # request of ours that was given up holds one of AT_ONCE places till then.
        for name, value in (
            ("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(max(1, round(seconds)))),
            ("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1"),
            ("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", str(max(1, round(seconds)))),
        ):
            os.environ.setdefault(name, value)
        self.received = 0  # bytes of objects that were read
        self._store: ts.KvStore | None = None
        # Objects in memory, and places for requests, belong to a context.
        self._context = ts.Context()

    def __repr__(self) -> str:
        return f"BlobStore({self.address.url!r})"

    async def check(self) -> None:
        """Asks the store for a listing.

        Reading tells nothing: TensorStore takes any 404 for an object that is missing,
        that of a bucket that doesn't exist too.
        """
        await self.list("run.json")

    async def put(self, key: str, content: bytes) -> None:
        """Writes an object, over what was there; all of it or nothing."""
        await self._do("write", key, len(content), lambda s: s.write(key, content))

    async def get(self, key: str, start: int, stop: int) -> bytes | None:
        """Bytes ``start`` to ``stop`` of an object, or None if there is none.

        Raises:
          BucketError: ``short``: the object ends before ``stop``.
        """
        if start == stop:  # no range of HTTP is empty
            return b""
        piece = slice(start, stop)
        found = await self._do(
            "read", key, stop - start, lambda s: s.read(key, byte_range=piece)
        )
        if found.state == "missing":
            return None
        content: bytes = found.value
        self.received += len(content)
        if len(content) != stop - start:
            said = f"{self.address.url}{key} has other bytes than were asked for"
            raise BucketError(said, code="short")
        return content

    async def read(
        self, key: str, *, unless: bytes | None = None, limit: int = MESSAGE_LIMIT
    ) -> Found | None:
        """A small object, or None if it is missing or still that generation.

        Raises:
          TooLarge: It has more than ``limit`` bytes; they aren't read.
        """
        found = await self._changed(key, unless, limit)
        return found if isinstance(found, Found) else None

    async def reread(self, key: str, known: Found) -> Found | None:
        """A small object anew: ``known`` if it is still that, None if it is missing.

        Raises:
          TooLarge: It has more than ``MESSAGE_LIMIT`` bytes; they aren't read.
        """
        found = await self._changed(key, known.generation, MESSAGE_LIMIT)
        return known if found == "same" else found

    async def _changed(
        self, key: str, unless: bytes | None, limit: int
    ) -> Found | Literal["same"] | None:
        # The one byte that must not be there. A range that ends behind the object is
        # an error as well, so this is the way to ask whether an object is too large.
        beyond = slice(limit, limit + 1)
        try:
            probe = await self._do(
                "read",
                key,
                1,
                lambda s: s.read(key, byte_range=beyond, if_not_equal=unless),
            )
        except BucketError as error:
            if error.code != "short":
                raise
        else:
            if probe.state != "value":
                return None if probe.state == "missing" else "same"
            raise TooLarge(f"{self.address.url}{key} has more than {limit} bytes")
        found = await self._do("read", key, limit, lambda s: s.read(key))
        if found.state != "value":
            return None
        self.received += len(found.value)
        return Found(found.value, found.stamp.generation)

    async def list(self, prefix: str = "") -> list[str]:
        """The keys that begin with ``prefix``, sorted; maybe not the newest ones."""
        keys = await self._do("list", prefix, 0, lambda s: s.list(_range(prefix)))
        return sorted(key.decode("utf-8", "replace") for key in keys)

    async def delete(self, key: str) -> None:
        """Deletes an object; it needn't be there."""
        await self._do("delete", key, 0, lambda s: s.write(key, None))

    async def _do(self, what: str, key: str, size: int, start: Any) -> Any:
        limit = self._seconds + size / self._slowest
        try:
            # Not wait_for: Python 3.11's forgets a cancellation that comes at the
            # moment of the result.
            async with asyncio.timeout(limit):
                return await self._run(start)
        except TimeoutError as error:
            if self.address.spec["driver"] != "memory":
                # With places for requests of its own, as the old ones may be held.
                self._store, self._context = None, ts.Context()
            raise BucketError(
                f"can't {what} {self.address.url}{key}: {self.address.endpoint} didn't "
                f"answer within {limit:.0f} s",
                code="unreachable",
            ) from error
        except ValueError as error:
            raise explain(what, key, self.address, str(error)) from error

    async def _run(self, start: Any) -> Any:
        if self._store is None:
            opening = ts.KvStore.open(self.address.spec, context=self._context)
            self._store = await _settled(opening)
        return await _settled(start(self._store))


async def _settled(future: Awaitable[_Result]) -> _Result:
    return await future


def _range(prefix: str) -> ts.KvStore.KeyRange:
    if not prefix:
        return ts.KvStore.KeyRange()
    last = prefix.encode()
    return ts.KvStore.KeyRange(last, last[:-1] + bytes([last[-1] + 1]))


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of it, at a time; the first error is raised when all has ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
