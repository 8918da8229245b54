"""Ends connections that ``loop.sendfile`` is at."""

import asyncio
import contextlib
import socket
import struct
from typing import Any

_SECONDS = 5.0  # for it to end


async def hang_up(peer: Any, sending: asyncio.Future[int]) -> None:
    """Ends a connection under ``sendfile``, and what is queued for it.

    Neither cancelling ``sendfile`` nor closing its transport leaves asyncio in order:
    the first may have the transport fail to close, the second leaves a file descriptor
    registered that the next connection gets. A socket that is shut down ends it.

    Args:
      peer: the transport's socket.
      sending: the task of ``sendfile``.
    """
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.shutdown(socket.SHUT_RDWR)
    await asyncio.wait({sending}, timeout=_SECONDS)
    if sending.done() and not sending.cancelled():
        sending.exception()  # that it ended is all
    else:
        sending.cancel()
