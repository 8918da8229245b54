"""Reads what peers send: counted, timed, and large bodies without copies."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from typing import cast

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from spheroid_jax.transport.http.buffers import Buffers
from spheroid_jax.transport.http.limits import Limits, Pace
from spheroid_jax.transport.http.sink import BUFFER, Sink
from spheroid_jax.transport.protocol import ProtocolError

Piece = bytes | bytearray | memoryview
_SMALL = 256 << 10  # bytes of a piece of a small body
# One buffer is filled, one is full and waits, two are with who asked for pieces.
_RING = 4
Pieces = AsyncGenerator[Piece, None]
# Set when a body was taken past aiohttp, which can't read another request after it.
LAST = web.RequestKey("last", bool)


class Body:
    """A request's body, counted whatever its headers say.

    Args:
      request: whose body it is.
      most: bytes that it may have.
      pace: that it has to keep, by the event loop's clock; or when it has to be there.
      buffers: of all uploads, for large bodies; None: of this one alone.
    """

    def __init__(
        self,
        request: web.Request,
        most: int,
        pace: Pace | float,
        buffers: Buffers | None = None,
    ) -> None:
        self._buffers = buffers or Buffers()
        self._request, self._most, self._pace = request, most, pace
        self._time = asyncio.get_running_loop().time
        self.bytes = 0

    async def pieces(self) -> Pieces:
        """The body in pieces of at most about ``BUFFER``; before an error, what came.

        A piece may be written over once the second one after it is asked for.

        Raises:
          ProtocolError: 413 too long, 408 too slow, 400 not framed as HTTP wants.
          ConnectionError: the peer is gone.
        """
        self._begin()
        with contextlib.ExitStack() as stack:
            if self._is_large():
                buffers = stack.enter_context(self._buffers.lent(_RING))
                pieces = self._large(buffers)
            else:
                pieces = self._small()
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def whole(self) -> bytes:
        """All of it. Raises as ``pieces``."""
        data = bytearray()
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                data += piece
        return bytes(data)

    def _begin(self) -> None:
        """Refuses what can be refused unread, then asks for the body."""
        headers = self._request.headers
        if headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise ProtocolError(
                "send the body as it is, without Content-Encoding", status=415
            )
        if (self._request.content_length or 0) > self._most:
            raise self._too_large()
        if headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            if self._request.transport is None:
                raise ConnectionResetError("the peer is gone")
            if self._request.version >= HttpVersion11:
                self._request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _is_large(self) -> bool:
        length = self._request.content_length
        return (
            isinstance(self._pace, Pace)
            and length is not None
            and length > BUFFER
            and not self._request.content.is_eof()
        )

    async def _small(self) -> Pieces:
        buffer = bytearray()
        try:
            while data := await self._read():
                buffer += data
                if len(buffer) >= _SMALL:
                    full, buffer = buffer, bytearray()
                    before = self._time()
                    yield full
                    self._excuse(self._time() - before)
        except (Exception, asyncio.CancelledError):
            if buffer:
                yield buffer
            raise
        if buffer:
            yield buffer

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline()):
                data = await self._request.content.readany()
        except TimeoutError as error:
            raise self._too_slow() from error
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise ProtocolError("the body isn't framed as HTTP wants it") from error
        except OSError as error:  # whatever TLS and the network call it
            raise ConnectionResetError("the peer is gone") from error
        if self.bytes + len(data) > self._most:
            raise self._too_large()
        self._moved(len(data))
        return data

    async def _large(self, buffers: list[memoryview]) -> Pieces:
        """Past aiohttp; the connection can't be used for another request after that."""
        transport, content = self._request.transport, self._request.content
        if transport is None:
            raise ConnectionResetError("the peer is gone")
        self._request[LAST] = True
        begun = bytearray()
        try:
            while data := content.read_nowait():  # that aiohttp has read already
                begun += data
        except OSError as error:
            raise ConnectionResetError("the peer is gone") from error
        self._moved(len(begun))
        length = cast(int, self._request.content_length)
        ring = itertools.cycle(buffers)
        sink = Sink(
            transport,
            length - len(begun),
            ring.__next__,
            self._moved,
            self._excuse,
        )
        if begun:
            yield memoryview(begun)
        try:
            while True:
                try:
                    async with asyncio.timeout_at(self._deadline()):
                        piece = await sink.next()
                except TimeoutError as error:
                    if self._time() < self._deadline():
                        continue  # bytes came, but no piece is full
                    raise self._too_slow() from error
                if not piece:
                    break
                yield piece
        except (Exception, asyncio.CancelledError):
            for piece in sink.left():
                yield piece
            raise
        finally:
            sink.ignore_rest()
        content.feed_eof()

    def _deadline(self) -> float:
        return self._pace.deadline if isinstance(self._pace, Pace) else self._pace

    def _moved(self, count: int) -> None:
        self.bytes += count
        if isinstance(self._pace, Pace):
            self._pace.moved(count, self._time())

    def _excuse(self, seconds: float) -> None:
        if isinstance(self._pace, Pace):
            self._pace.excuse(seconds)

    def _too_large(self) -> ProtocolError:
        return ProtocolError(
            f"the body is longer than {self._most} bytes, all that may come here",
            status=413,
            code="too_large",
        )

    def _too_slow(self) -> ProtocolError:
        return ProtocolError(
            f"the body came too slowly; {self.bytes} bytes of it came",
            status=408,
            code="too_slow",
        )


async def read_message(request: web.Request, limits: Limits) -> bytes:
    """A JSON body, whole. Raises as ``Body.pieces``."""
    end = asyncio.get_running_loop().time() + limits.message_seconds
    return await Body(request, limits.message, end).whole()
