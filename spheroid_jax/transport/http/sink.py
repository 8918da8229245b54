"""Large bodies from the socket straight into our buffers, past aiohttp.

aiohttp hands on a body in the parts that the system gave it, each a few copies later;
a large body costs twice the processor time that way. Both ends read large ones here.
"""

import asyncio
from collections.abc import Callable

BUFFER = 1 << 20  # bytes of a piece of a body


class Sink(asyncio.BufferedProtocol):
    """Takes a transport over from aiohttp and reads ``rest`` bytes into buffers.

    What comes after them is ignored, and the connection can't be used for another
    request. One buffer is filled, one is full and waits; with a second one full,
    reading pauses.

    Args:
      transport: whose protocol is aiohttp's; plain or TLS.
      rest: bytes.
      buffers: gives a buffer to fill.
      moved: is told of bytes as they come.
      excuse: is told of seconds that the peer had to wait for us.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        rest: int,
        buffers: Callable[[], memoryview],
        moved: Callable[[int], None] = lambda count: None,
        excuse: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._transport, self._rest, self._buffers = transport, rest, buffers
        self._moved, self._excuse = moved, excuse
        self._aiohttp = transport.get_protocol()
        self._time = asyncio.get_running_loop().time
        self._buffer = buffers()
        self._filled = 0
        self._full: memoryview | None = None
        self._paused: float | None = None  # since when
        self._ignores = False
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        transport.pause_reading()  # aiohttp resumed it; twice is allowed
        transport.set_protocol(self)
        transport.resume_reading()

    async def next(self) -> memoryview | None:
        """The next piece, a full buffer or the last; None at the end.

        Raises:
          ConnectionError: the peer is gone.
        """
        while self._full is None:
            if self._rest == 0 and not self._filled:
                return None
            if self._failure is not None:
                # Never as it is: a TimeoutError of the network isn't one of ours.
                raise ConnectionResetError("the peer is gone") from self._failure
            self._wake.clear()
            await self._wake.wait()
        piece, self._full = self._full, None
        if self._paused is not None:
            self._excuse(self._time() - self._paused)
            self._paused = None
            self._transport.resume_reading()
        if self._filled and (self._is_full() or self._rest == 0):
            self._turn()
        return piece

    def left(self) -> list[memoryview]:
        """What came and wasn't asked for."""
        full = [] if self._full is None else [self._full]
        return [*full, self._buffer[: self._filled]] if self._filled else full

    def ignore_rest(self) -> None:
        """From now on nothing that comes is of interest, and no buffer is held."""
        self._ignores = True
        self._buffer, self._full = memoryview(b""), None
        self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        if self._ignores or not self._rest:
            return memoryview(bytearray(64 << 10))
        return self._buffer[self._filled :][: self._rest]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were read."""
        if self._ignores or not self._rest:
            return
        self._filled += nbytes
        self._rest -= nbytes
        self._moved(nbytes)
        if self._is_full() or self._rest == 0:
            if self._full is None:
                self._turn()
            else:
                self._paused = self._time()
                self._transport.pause_reading()

    def _is_full(self) -> bool:
        return self._filled == len(self._buffer)

    def _turn(self) -> None:
        """The buffer that is filled is the one to be taken, and another is filled."""
        self._full = self._buffer[: self._filled]
        self._filled = 0
        if self._rest:
            self._buffer = self._buffers()
        self._wake.set()

    def eof_received(self) -> bool:
        """The peer sends no more; nothing is left to say to it then."""
        self._fail(ConnectionResetError("the peer sends no more"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self._fail(exc or ConnectionResetError("the peer is gone"))
        self._aiohttp.connection_lost(exc)

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._wake.set()

    def pause_writing(self) -> None:
        """Answers are aiohttp's."""
        self._aiohttp.pause_writing()

    def resume_writing(self) -> None:
        """Answers are aiohttp's."""
        self._aiohttp.resume_writing()
