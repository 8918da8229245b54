"""Listening: who comes in, and for how long."""

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable

from spheroid_jax.serving.wire import handshake
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection, Handler, Watcher, ignore
from spheroid_jax.serving.wire.limits import Limits, WireError
from spheroid_jax.serving.wire.stream import Stream, address_of
from spheroid_jax.transport.http.requests import network_of
from spheroid_jax.transport.http.room import Room
from spheroid_jax.transport.http.tls import is_loopback
from spheroid_jax.transport.ledger import LedgerError

log = logging.getLogger(__name__)


class _Door(asyncio.Protocol):
    """A connection of which nothing has been read yet."""

    def __init__(self, meet: Callable[[asyncio.Transport], None]):
        self._meet = meet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._meet(transport)


class Listener:
    """Listens, and keeps the connections; :func:`listen` makes one.

    Attributes:
      port: where.
      connections: that have proven themselves and are open.
    """

    def __init__(
        self,
        credentials: Credentials,
        identity: Identity,
        handler: Handler,
        opened: Watcher | None,
        closed: Watcher | None,
        limits: Limits,
    ):
        self.port = 0
        self.connections: set[Connection] = set()
        self._credentials, self._identity = credentials, identity
        self._handler, self._opened, self._closed = handler, opened, closed
        self._limits = limits
        self._strangers: Room[asyncio.Task[None]] = Room(
            limits.strangers, limits.strangers_each
        )
        self._welcoming: set[asyncio.Task[None]] = set()  # those who were dropped, too
        self._server: asyncio.Server | None = None
        self._closing = False
        self._watch: asyncio.Task[None] | None = None
        self._complained: deque[float] = deque(maxlen=10)

    async def open(self, host: str, port: int) -> None:
        """Begins to listen; port 0 takes a free one.

        Raises:
          ValueError: the address can't be had.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Door(self._meet), host, port
            )
        except OSError as error:
            said = error.strerror or error
            raise ValueError(
                f"can't listen on {host}:{port}: {said}; choose another --listen"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.create_task(self._revoke())

    async def close(self, text: str = "it ends") -> None:
        """Takes no more, and closes what is open."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        tasks = list(self._welcoming)
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self.connections)
        await asyncio.gather(*(one.close(text) for one in connections))

    def _meet(self, transport: asyncio.Transport) -> None:
        limits = self._limits
        if self._closing:
            transport.abort()
            return
        where = address_of(transport)
        if len(self.connections) >= limits.connections:
            self._complain(f"{where} is one connection too many: refused")
            transport.abort()
            return
        task = asyncio.create_task(self._welcome(transport))
        self._welcoming.add(task)
        task.add_done_callback(functools.partial(self._over, transport))
        # The oldest of those who haven't proven anything goes, if there is no room: who
        # is silent doesn't keep others out, least of all those from elsewhere.
        peer = transport.get_extra_info("peername")
        owner = network_of(peer[0]) if isinstance(peer, tuple) else "?"
        _, dropped = self._strangers.enter(owner, task)
        if dropped is not None:
            self._complain(
                f"{where} is one too many that has proven nothing: the oldest is cut"
            )
            dropped.cancel()

    def _over(self, transport: asyncio.Transport, task: asyncio.Task[None]) -> None:
        self._welcoming.discard(task)
        self._strangers.leave(task)
        if task.cancelled():  # perhaps before it began
            transport.abort()

    async def _welcome(self, transport: asyncio.Transport) -> None:
        limits = self._limits
        try:
            stream = await self._let_in(transport)
            peer = await handshake.welcome(
                stream, self._credentials, self._identity, limits.handshake_seconds
            )
        except WireError as error:
            self._complain(str(error))
            return
        except Exception:
            log.exception("a handshake failed")
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        connection = Connection(stream, peer, limits)
        self.connections.add(connection)
        if self._opened is not None:
            self._opened(connection)
        connection.start(self._handler, self._gone)

    async def _let_in(self, transport: asyncio.Transport) -> Stream:
        """Through TLS, if there is some, which counts as a stranger's time, too."""
        limits, context = self._limits, self._credentials.server
        stream = Stream(limits)
        if context is None:
            transport.set_protocol(stream)
            stream.connection_made(transport)
            transport.resume_reading()
            return stream
        where = address_of(transport)
        try:
            inside = await asyncio.get_running_loop().start_tls(
                transport,
                stream,
                context,
                server_side=True,
                ssl_handshake_timeout=limits.handshake_seconds,
                ssl_shutdown_timeout=limits.close_seconds,
            )
        except OSError as error:  # of TLS, of time, of the network
            said = getattr(error, "reason", None) or error.strerror or "it hung up"
            raise WireError(
                f"{where} didn't come through TLS: {said}", "foreign"
            ) from None
        assert inside is not None
        stream.connection_made(inside)
        return stream

    def _gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._closed is not None:
            self._closed(connection)

    async def _revoke(self) -> None:
        """Cuts, for ever, the connections whose tokens aren't valid any more."""
        admits = self._credentials.admits
        while admits is not None:
            await asyncio.sleep(self._limits.revocation_seconds)
            try:
                keys = admits.current()
            except LedgerError as error:
                self._complain(f"tokens can't be checked: {error}")
                continue
            except Exception:  # one look that fails mustn't be the last
                log.exception("tokens can't be checked")
                continue
            for one in list(self.connections):
                if keys.get(one.peer.name) != one.peer.key:
                    said = f"the token of {one.peer.name} was revoked"
                    one.cut(WireError(f"{one.peer.where}: {said}", "revoked"))

    def _complain(self, text: str) -> None:
        """A line in the log; strangers get ten in ten seconds, not more."""
        now = time.monotonic()
        full = len(self._complained) == self._complained.maxlen
        if not full or now - self._complained[0] > 10.0:
            self._complained.append(now)
            log.warning("%s", text)


async def listen(
    host: str,
    port: int,
    credentials: Credentials,
    handler: Handler = ignore,
    *,
    identity: Identity,
    opened: Watcher | None = None,
    closed: Watcher | None = None,
    limits: Limits | None = None,
) -> Listener:
    """Lets peers in that prove that they know a token.

    Args:
      host, port: where; port 0 takes a free one.
      credentials: whom to admit.
      handler: of what peers say.
      identity: of this process.
      opened: is called with every new connection, before its first message.
      closed: is called once with every connection that is over.
      limits: of everything.

    Raises:
      ValueError: the address can't be had, nobody could ever come in, or it would be
        plain TCP to other machines.
    """
    if credentials.admits is None:
        raise ValueError("whom to let in? give --token-file or --workdir")
    if (
        credentials.server is None
        and not credentials.insecure
        and not is_loopback(host)
    ):
        raise ValueError(
            f"--listen={host}:{port} lets other machines in, and plain TCP can be read "
            "and changed on the way; give --certificate and --key for TLS, or "
            "--insecure in a net you trust"
        )
    limits = limits or Limits()
    listener = Listener(credentials, identity, handler, opened, closed, limits)
    await listener.open(host, port)
    return listener
