"""The body of an answer as it comes in: large ones from the socket into our memory."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable

import aiohttp
import numpy as np

from spheroid_jax.transport.http.sink import BUFFER, Sink

Chunks = AsyncGenerator[bytes | memoryview, None]


async def chunks(answer: aiohttp.ClientResponse, seconds: float) -> Chunks:
    """The body in chunks; before an error, all of it that came.

    A large one takes the connection along; it is closed then.

    Args:
      answer: of a request whose ``sock_read`` is ``seconds``, too.
      seconds: without a byte.

    Raises:
      OSError, aiohttp.ClientError: it broke off, or nothing came for so long.
    """
    length = answer.content_length
    transport = answer.connection.transport if answer.connection else None
    if length is None or length <= BUFFER or transport is None:
        async for chunk in answer.content.iter_any():
            yield chunk
        return
    begun = bytearray()
    while data := answer.content.read_nowait():  # that aiohttp has read already
        begun += data
    waiting = _Waiting(seconds)
    sink = Sink(transport, length - len(begun), recycled(), waiting.moved)
    try:
        if begun:
            yield memoryview(begun)
        while piece := await waiting.next_of(sink):
            yield piece
    except OSError:
        for piece in sink.left():
            yield piece
        raise
    finally:
        sink.ignore_rest()
        answer.close()


def recycled() -> Callable[[], memoryview]:
    """Gives buffers; their memory is used again once nobody holds a part of one.

    New memory for each would cost as much as the system takes to clear it.
    """
    free: list[np.ndarray] = []

    def give() -> memoryview:
        memory = free.pop() if free else np.empty(BUFFER, np.uint8)
        lent = memory[:]  # lives for as long as a view of it does
        weakref.finalize(lent, free.append, memory).atexit = False
        return lent.data

    return give


class _Waiting:
    """Gives up on a peer that sends nothing for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._time = asyncio.get_running_loop().time
        self._last = self._time()

    def moved(self, count: int) -> None:
        """Bytes came."""
        self._last = self._time()

    async def next_of(self, sink: Sink) -> memoryview | None:
        """As ``Sink.next``; TimeoutError if nothing comes."""
        self._last = self._time()  # what was before, was us
        while True:
            try:
                async with asyncio.timeout_at(self._last + self._seconds):
                    return await sink.next()
            except TimeoutError:
                if self._time() >= self._last + self._seconds:
                    raise
