"""A worker's link to a coordinator over HTTP.

What a bad line does is met here: connections that break, stand still or lie, a
coordinator that is restarted. Every call may be made twice, so every call is tried
again; transfers go on where they broke off.
"""

import contextlib
from pathlib import Path

import msgspec

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http import answers, receiving, sending
from spheroid_jax.transport.http.asking import Asking, Message
from spheroid_jax.transport.http.retry import Again
from spheroid_jax.transport.items import fetch
from spheroid_jax.transport.items.index import INDEX_LIMIT
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)


class HttpLink(Asking):
    """Implements :class:`spheroid_jax.transport.link.Link`."""

    async def register(self, request: Register) -> Registered:
        """As ``Link.register``."""
        told = await self._call("registering", "/workers", request, Registered)
        if told.protocol != protocol.VERSION:
            raise LinkError(
                f"{self.url}: the coordinator speaks version {told.protocol} of the "
                f"protocol, this worker {protocol.VERSION}; install the same release",
                code="version",
            )
        return told

    async def work(self, request: WorkRequest) -> Work:
        """As ``Link.work``."""
        what = "asking for work"
        return await self._call(what, "/work", request, Work, wait=request.wait)

    async def heartbeat(self, request: Heartbeat) -> Pulse:
        """As ``Link.heartbeat``."""
        return await self._call("a heartbeat", "/heartbeat", request, Pulse)

    async def leave(self, request: Leave) -> None:
        """As ``Link.leave``."""

        async def attempt() -> None:
            body = protocol.encode(request)
            async with self.ask("POST", "/leave", body=body):
                pass

        await self.tries("leaving").run(attempt)

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        """As ``Link.fetch``."""
        return await fetch.fetch(self, item, target, progress)

    async def submit(
        self, upload: Upload, path: Path, progress: Progress | None = None
    ) -> Verdict:
        """As ``Link.submit``."""
        return await sending.submit(self, upload, path, progress, self._speed)

    # What items.fetch needs.

    async def read_index(self, item: Item) -> bytes:
        """The index of an item, unverified."""

        async def attempt() -> bytes:
            async with self.ask("GET", f"/items/{item.digest}/index") as answer:
                return await answers.body(answer, INDEX_LIMIT)

        return await self.tries("fetching the index of an item").run(attempt)

    async def read_data(self, item: Item, start: int, stop: int) -> receiving.Chunks:
        """Bytes ``start`` to ``stop`` of an item, unverified, in chunks as they come.

        A connection that breaks is followed by another, from the byte it got to.
        """
        path = f"/items/{item.digest}/data"
        async with contextlib.aclosing(self._read(path, start, stop, item.bytes)) as r:
            async for chunk in r:
                yield chunk

    async def read_step(self, item: Item) -> receiving.Chunks:
        """The step from the item's base to it, unverified; as ``read_data``."""
        path, size = f"/items/{item.digest}/step", item.step_bytes
        async with contextlib.aclosing(self._read(path, 0, size, size)) as r:
            async for chunk in r:
                yield chunk

    async def _read(
        self, path: str, start: int, stop: int, size: int
    ) -> receiving.Chunks:
        tries = self.tries("fetching an item")
        at = start
        while at < stop:
            asked = {"Range": f"bytes={at}-{stop - 1}"}
            try:
                async with self.ask("GET", path, headers=asked) as answer:
                    answers.check_range(answer, at, stop, size)
                    parts = receiving.chunks(answer, self._timeouts.sock_read)
                    async with contextlib.aclosing(parts):
                        async for chunk in parts:
                            at += len(chunk)
                            if at > stop:
                                raise Again("it sent more than it said", garbled=True)
                            tries.progress()
                            yield chunk
                if at < stop:
                    raise Again("the answer ended early")
            except Again as again:
                await tries.pause(again)

    async def _call(
        self,
        what: str,
        path: str,
        message: msgspec.Struct,
        kind: type[Message],
        *,
        wait: float = 0.0,
    ) -> Message:
        async def attempt() -> Message:
            return await self.post(path, message, kind, wait=wait)

        return await self.tries(what).run(attempt)
