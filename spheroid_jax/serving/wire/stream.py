"""One TCP or TLS connection as a stream of frames: bounded memory, bounded patience."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from spheroid_jax.serving.wire.frames import STRANGER, Frame, FrameError, FrameReader
from spheroid_jax.serving.wire.limits import Limits, WireError

_JOINED = 64 << 10  # bytes of a frame that are cheaper copied together than sent apart


class Stream(asyncio.BufferedProtocol):
    """Frames in and out of one connection.

    Reading stops while nobody calls :meth:`receive`: the peer has to wait, in its
    kernel's buffers and ours.

    Attributes:
      where: the peer's address, for messages.
      error: why it ended, once it has.
      ended: done when the connection is gone.
      received, sent: bytes so far.
    """

    def __init__(self, limits: Limits):
        self.where = "?"
        self.error: WireError | None = None
        self.received = self.sent = 0
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._reader = FrameReader(STRANGER)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Of the frame that is on its way: since when, and after how many bytes.
        self._since: tuple[float, int] | None = None
        self._no_more = self._reading_paused = False
        # Of what is sent: one at a time, in the order of the calls.
        self._turn = asyncio.Lock()
        self._senders = 0  # that wait
        self._writable = asyncio.Event()
        self._writable.set()
        self._stuck: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes to be sent, when that was last looked at

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._limits.buffered)
        self.where = address_of(transport)
        _tune(transport.get_extra_info("socket"), self._limits.send_seconds)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes; what comes after the end is forgotten."""
        if self.error is not None:
            return memoryview(bytearray(4096))
        return self._reader.buffer()

    def buffer_updated(self, count: int) -> None:
        """So many bytes came."""
        self.received += count
        if self.error is not None:
            return
        self._reader.advance(count)
        if self._reader.filling:
            return
        if not len(self._reader.buffer()):
            self._pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The peer sends no more; as it ever does both, it is over."""
        self._no_more = True
        self._wake()
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        self._no_more = True
        if exc is not None and self.error is None:
            said = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            self.error = WireError(f"{self.where} was lost: {said}", "lost")
        if self._stuck is not None:
            self._stuck.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        """As much waits to be sent as may."""
        self._writable.clear()
        self._watch()

    def resume_writing(self) -> None:
        """There is room again."""
        if self._stuck is not None:
            self._stuck.cancel()
        self._writable.set()

    # What we call.

    @property
    def over(self) -> bool:
        """Whether nothing can be sent any more."""
        gone = self._transport is None or self._transport.is_closing()
        return self.error is not None or self._no_more or gone

    def trust(self) -> None:
        """Allows frames of full size from now on."""
        self._reader.allow(self._limits.sizes)

    async def receive(self) -> Frame | None:
        """The next frame; None once the peer has closed. One caller at a time.

        Raises:
          FrameError: what comes is no frame, or it comes too slowly.
          WireError: the connection is over.
        """
        while True:
            if self.error is not None:
                raise self.error.again()
            if (found := self._reader.next()) is not None:
                self._since = None
                return found
            if self._no_more:
                self._reader.end()
                return None
            self._resume_reading()
            await self._more()

    async def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Sends a frame; waits while too much waits to be sent already.

        Raises:
          WireError: the connection is over, or the peer takes nothing.
        """
        if self._writable.is_set() and not self._senders:
            self._write(pieces)
            return
        self._senders += 1
        try:
            async with self._turn:
                while not self._writable.is_set():
                    await self._writable.wait()
                self._write(pieces)
        finally:
            self._senders -= 1

    def end(self, error: WireError, last: Sequence[bytes | memoryview] = ()) -> None:
        """Ends the connection, for this reason, with a last frame if there is room.

        The peer closes when it has read that; if it doesn't, it is cut.
        """
        if self.error is not None or self._transport is None:
            return
        if last and self._writable.is_set() and not self._transport.is_closing():
            with contextlib.suppress(WireError):
                self._write(last)
        self.error = error
        self._no_more = True
        self._writable.set()
        self._resume_reading()  # what was sent before could else be lost by a reset
        self._wake()
        self._loop.call_later(self._limits.close_seconds, self.cut)

    def close(self) -> None:
        """Closes the transport, once what was written has gone."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Ends the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        if self.error is not None:
            raise self.error.again()
        transport = self._transport
        if self.over or transport is None:
            raise WireError(f"{self.where} has closed the connection", "closed")
        size = sum(map(len, pieces))
        self.sent += size
        if size <= _JOINED:
            transport.write(b"".join(pieces))
        else:  # not writelines: it copies, or before 3.12.9 and 3.13.2 never pauses
            for piece in pieces:
                transport.write(piece)

    async def _more(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        timer = None
        if self._reader.expected:
            if self._since is None:
                self._since = self._loop.time(), self.received
            when = self._since[0] + self._limits.frame_seconds
            timer = self._loop.call_at(when, self._look_at_frame, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _look_at_frame(self, waiter: asyncio.Future[None]) -> None:
        """Whether what began to arrive goes on as it should."""
        if waiter.done() or self._since is None:
            return
        came = self.received - self._since[1]
        if came >= self._limits.rate * self._limits.frame_seconds:
            self._since = None  # from here on, once more
            waiter.set_result(None)
            return
        waiter.set_exception(
            FrameError(
                f"a frame began to arrive, and within {self._limits.frame_seconds:g} s "
                f"{came} bytes more came",
                "slow",
            )
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _watch(self) -> None:
        """Looks again later whether the peer takes what it is sent."""
        if self._transport is not None:
            self._waiting = self._transport.get_write_buffer_size()
            self._stuck = self._loop.call_later(self._limits.send_seconds, self._look)

    def _look(self) -> None:
        if self._transport is None or self._writable.is_set():
            return
        taken = self._waiting - self._transport.get_write_buffer_size()
        if taken >= self._limits.rate * self._limits.send_seconds:
            self._watch()
            return
        if self.error is None:
            self.error = WireError(
                f"{self.where} took {taken} bytes within {self._limits.send_seconds:g} "
                "s of what it was sent: cut",
                "slow",
            )
        self.cut()


def address_of(transport: asyncio.BaseTransport) -> str:
    """The peer's address, for messages."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "?"
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return f"{host}:{peer[1]}"


def _tune(sock: socket.socket | None, seconds: float) -> None:
    """No waiting for full segments; a peer that is gone without a word is noticed."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),  # seconds
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(1000 * (seconds + 20))),
    ]
    for level, name, value in options:
        if (option := getattr(socket, name, None)) is not None:  # Linux has them all
            with contextlib.suppress(OSError):
                sock.setsockopt(level, option, value)
