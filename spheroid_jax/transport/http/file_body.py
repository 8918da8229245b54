"""A part of a file as the body of a request, sent by the kernel where it can."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from spheroid_jax.transport.http.hanging_up import hang_up

_PIECE = 1 << 20  # bytes sent at a time
_PART = 128 << 10  # bytes encrypted at a time
_FIRST = 16 << 10  # bytes that go with the headers


def parts(chunk: bytes) -> Iterator[memoryview]:
    """Cuts what is to be encrypted so that it stays in the processor's cache."""
    view = memoryview(chunk)
    for at in range(0, len(view), _PART):
        yield view[at : at + _PART]


class Unreadable(Exception):
    """The file isn't what it was; the text says why."""


class FileBody(Payload):
    """The bytes from ``start`` to ``stop`` of a file, which a thread may read.

    Args:
      file: open and unbuffered; it stays open.
      start: where they begin.
      stop: where they end.
      passed: is called each time that some of them are gone.

    Attributes:
      unreadable: why the file couldn't be read, if that is how it ended.
    """

    def __init__(
        self, file: BinaryIO, start: int, stop: int, passed: Callable[[], None]
    ) -> None:
        super().__init__(file, content_type="application/octet-stream")
        self._file, self._start, self._stop = file, start, stop
        self._passed = passed
        self._size = stop - start
        self.unreadable = ""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """For aiohttp's own use; bytes are no text."""
        raise TypeError("a part of a file is no text")

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """All of it at once."""
        return await self._read(self._start, self._stop - self._start)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Sends it.

        Raises:
          Unreadable: The file ended early, or the disk failed.
          OSError: The connection did.
        """
        try:
            await self._write(writer)
        except Unreadable as error:
            self.unreadable = str(error)
            raise

    async def _write(self, writer: AbstractStreamWriter) -> None:
        transport = writer.transport
        if transport is None:
            raise ConnectionResetError("the peer is gone")
        is_secured = transport.get_extra_info("sslcontext") is not None
        # The headers are sent with the first bytes; see StreamWriter.
        at = self._start
        ahead = asyncio.ensure_future(self._read(at, _PIECE if is_secured else _FIRST))
        try:
            while at < self._stop:
                chunk = await ahead
                at += len(chunk)
                if is_secured:
                    ahead = asyncio.ensure_future(self._read(at, _PIECE))
                for part in parts(chunk):
                    await writer.write(part)
                self._passed()
                if not is_secured:
                    await writer.drain()
                    break
        finally:
            ahead.cancel()
        while at < self._stop:
            length = min(_PIECE, self._stop - at)
            if await _send(transport, self._file, at, length) < length:
                raise Unreadable("it ends early")
            at += length
            self._passed()

    async def _read(self, at: int, most: int) -> bytes:
        size = min(most, self._stop - at)
        try:
            chunk = await asyncio.to_thread(os.pread, self._file.fileno(), size, at)
        except OSError as error:
            raise Unreadable(str(error.strerror)) from error
        if len(chunk) < size:
            raise Unreadable("it ends early")
        return chunk


async def _send(
    transport: asyncio.WriteTransport, file: BinaryIO, at: int, length: int
) -> int:
    """By the kernel; how much it was. What is read meanwhile waits in the socket."""
    loop = asyncio.get_running_loop()
    sending = asyncio.ensure_future(loop.sendfile(transport, file, at, length))
    try:
        await asyncio.wait({sending})
    finally:
        if not sending.done():
            await hang_up(transport.get_extra_info("socket"), sending)
    try:
        return sending.result()
    except RuntimeError as error:  # it closed before the first byte
        raise ConnectionResetError("the peer is gone") from error
    except OSError:
        # What the peer said before it hung up is read, for it may say why.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise
