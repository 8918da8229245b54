"""Sends files: ranges, by the kernel where it can, and never to who doesn't read."""

import asyncio
import os
import re
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from aiohttp import hdrs, web

from spheroid_jax.transport.http.file_body import parts
from spheroid_jax.transport.http.hanging_up import hang_up
from spheroid_jax.transport.http.limits import Limits, Pace
from spheroid_jax.transport.protocol import ProtocolError

# The kernel says how much of a piece has arrived; elsewhere a piece is the measure.
_TELLS = sys.platform == "linux" and hasattr(socket, "TCP_INFO")
PIECE = 4 << 20 if _TELLS else 256 << 10  # bytes for one call of sendfile
TLS_PIECE = 1 << 20  # bytes read, encrypted and sent at a time
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})", re.ASCII)
_ACKED = struct.Struct("Q")  # tcpi_bytes_acked
_ACKED_AT = 120


class Unsatisfiable(ProtocolError):
    """A range outside of the file; ``headers`` say how long that is."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the range isn't within the {size} bytes there are", status=416
        )
        self.headers = {hdrs.CONTENT_RANGE: f"bytes */{size}"}


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The range that a ``Range`` header asks for, as (first, behind the last).

    Returns:
      None for the whole file: no header, or one that isn't understood, several
      ranges among them, which HTTP wants ignored.

    Raises:
      Unsatisfiable: nothing of it is in the file.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last), size - 1) + 1 if last else size
        if last and int(last) < start:
            return None  # not a range by the syntax
    if start >= size or start >= stop:
        raise Unsatisfiable(size)
    return start, stop


async def send_file(
    request: web.Request,
    path: Path,
    tag: str,
    limits: Limits,
    count: Callable[[int], None],
) -> web.StreamResponse:
    """Answers with an immutable file or the range of it that is asked for.

    Args:
      request: GET or HEAD.
      path: of the file.
      tag: names the content, for ``ETag``.
      limits: how slowly it may be read.
      count: is told the bytes that were sent, as they are.

    Raises:
      ProtocolError: 404 there is no such file; 416.
    """
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError as error:
        raise ProtocolError(
            "this item isn't here any more", status=404, code="unknown"
        ) from error
    with file:
        size = os.fstat(file.fileno()).st_size  # its name may be gone already
        quoted = f'"{tag}"'
        response = web.StreamResponse(
            headers={
                hdrs.ACCEPT_RANGES: "bytes",
                hdrs.CACHE_CONTROL: "private, max-age=31536000, immutable",
                hdrs.CONTENT_TYPE: "application/octet-stream",
                hdrs.ETAG: quoted,
            }
        )
        start, stop = 0, size
        if request.headers.get(hdrs.IF_RANGE, quoted) == quoted:
            part = parse_range(request.headers.get(hdrs.RANGE), size)
            if part is not None:
                start, stop = part
                response.set_status(206)
                response.headers[hdrs.CONTENT_RANGE] = (
                    f"bytes {start}-{stop - 1}/{size}"
                )
        response.content_length = stop - start
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD and stop > start:
            try:
                await _send(request, response, file, start, stop, limits, count)
            except OSError:  # who asked is gone or was cut; nobody to tell
                if request.transport is not None:
                    request.transport.abort()
        return response


async def _send(
    request: web.Request,
    response: web.StreamResponse,
    file: BinaryIO,
    start: int,
    stop: int,
    limits: Limits,
    count: Callable[[int], None],
) -> None:
    loop = asyncio.get_running_loop()
    pace = Pace(limits, loop.time())
    acked = _acked(request)
    # asyncio has a sendfile over TLS, too: it moves 16 KiB at a time, and now and then
    # fails as aiohttp is told to resume writing that it hasn't paused.
    is_secured = request.get_extra_info("sslcontext") is not None
    largest = TLS_PIECE if is_secured else PIECE
    while start < stop:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer is gone")
        length = min(largest, stop - start)
        sending = asyncio.ensure_future(
            _write(response, file, start, length)
            if is_secured
            else loop.sendfile(transport, file, start, length)
        )
        try:
            while not sending.done():
                # Often enough to see bytes move before the deadline.
                tick = min(pace.deadline, loop.time() + limits.idle / 4)
                await asyncio.wait({sending}, timeout=max(0.0, tick - loop.time()))
                now, arrived = loop.time(), _acked(request)
                if arrived > acked:
                    pace.moved(arrived - acked, now)
                    acked = arrived
                elif sending.done() and not _TELLS:
                    pace.moved(length, now)
                if not sending.done() and now >= pace.deadline:
                    raise ConnectionAbortedError("the peer reads too slowly")
        finally:
            if not sending.done():
                await hang_up(request.get_extra_info("socket"), sending)
        try:
            count(sending.result())
        except RuntimeError as error:  # it closed before the first byte
            if not transport.is_closing():
                raise
            raise ConnectionResetError("the peer is gone") from error
        start += length


async def _write(
    response: web.StreamResponse, file: BinaryIO, start: int, length: int
) -> int:
    """Sends a part of a file through the process; how much."""
    data = await asyncio.to_thread(os.pread, file.fileno(), length, start)
    if len(data) < length:
        raise OSError("the file has an early end")
    for part in parts(data):
        await response.write(part)
    return length


def _acked(request: web.Request) -> int:
    """Bytes that the peer's kernel has confirmed; 0 where nobody can tell."""
    peer = request.get_extra_info("socket")
    if not _TELLS or peer is None:
        return 0
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        return int(_ACKED.unpack_from(info, _ACKED_AT)[0])
    except (OSError, struct.error):
        return 0
