"""Where connections come in: each is counted before anything, TLS, is done for it."""

import asyncio
import logging
import ssl
from collections.abc import Callable

from spheroid_jax.transport.http.guests import Guest, Guests
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.requests import network_of

log = logging.getLogger(__name__)
_LATE = 0.5  # seconds by which a loop that has time isn't
Make = Callable[[Guest], asyncio.Protocol]


class Doors:
    """Lets connections in; ``door`` makes the protocol of a new one.

    Args:
      guests: where each enters.
      make: the protocol of one that is in.
      context: for TLS; None: plain.
      limits: of HTTP.
    """

    def __init__(
        self,
        guests: Guests,
        make: Make,
        context: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._guests, self._make, self._context = guests, make, context
        self._limits = limits
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def door(self) -> asyncio.Protocol:
        """For ``create_server``, without TLS."""
        return _Door(self._meet)

    async def close(self) -> None:
        """Ends the handshakes that run, and lets nobody in any more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _meet(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        address = network_of(peer[0]) if isinstance(peer, tuple) else "?"
        guest = Guest(address, transport.abort)
        if self._closed:
            transport.abort()
            return
        self._guests.enter(guest)
        self._settle_later(guest)
        if self._context is None:
            protocol = self._make(guest)
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return
        transport.pause_reading()
        task = asyncio.create_task(self._through_tls(transport, guest, self._context))
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                self._guests.leave(guest)
                transport.abort()

        def cut() -> None:
            task.cancel()

        guest.cut = cut
        task.add_done_callback(over)

    def _settle_later(self, guest: Guest) -> None:
        loop, seconds = asyncio.get_running_loop(), self._limits.new_seconds
        due = loop.time() + seconds

        def look() -> None:
            if loop.time() > due + _LATE:
                self._settle_later(guest)  # its request may be here, unread
            else:
                self._guests.settle(guest)

        loop.call_at(due, look)

    async def _through_tls(
        self, transport: asyncio.Transport, guest: Guest, context: ssl.SSLContext
    ) -> None:
        early = _Early()
        try:
            inside = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                context,
                server_side=True,
                ssl_handshake_timeout=self._limits.message_seconds,
                ssl_shutdown_timeout=self._limits.shutdown,
            )
        except OSError as error:  # of TLS, of time, of the network
            self._guests.leave(guest)
            transport.abort()
            log.debug("%s didn't come through TLS: %s", guest.address, error)
            return
        if inside is None or early.lost:  # it hung up at the last moment
            self._guests.leave(guest)
            transport.abort()
            return
        protocol = self._make(guest)
        inside.set_protocol(protocol)
        protocol.connection_made(inside)
        for data in early.data:
            protocol.data_received(data)
        if early.ended:
            protocol.eof_received()


class _Door(asyncio.Protocol):
    """A connection of which nothing has been read yet."""

    def __init__(self, meet: Callable[[asyncio.Transport], None]) -> None:
        self._meet = meet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        self._meet(transport)


class _Early(asyncio.Protocol):
    """Keeps what came with the end of a handshake, before that was noticed."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.ended = self.lost = False

    def data_received(self, data: bytes) -> None:
        """A piece, hardly more than one."""
        self.data.append(data)

    def eof_received(self) -> None:
        """The peer sends no more."""
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self.lost = True
